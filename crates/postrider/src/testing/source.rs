//! Where deliveries are made from.

use super::MemoryDatabase;
use crate::event::Event;
use crate::outbox::Outbox;

/// A database whose events can be [delivered](super::drain) in a test: a [`MemoryDatabase`], or
/// a connection of rusqlite.
#[diagnostic::on_unimplemented(
    message = "events of `{Self}` cannot be delivered in a test",
    label = "pass `&mut database` of a `MemoryDatabase`, or `&mut conn` of rusqlite",
    note = "rusqlite is behind the feature `rusqlite` of postrider"
)]
pub trait Source {
    /// All events that were committed to an outbox, in order.
    fn events(&self, outbox: &Outbox) -> Vec<Event>;

    /// Those that were not delivered, in order.
    fn pending(&self, outbox: &Outbox) -> Vec<Event>;

    /// Marks an event as delivered.
    fn settle(&mut self, outbox: &Outbox, event: &Event);
}

impl Source for MemoryDatabase {
    fn events(&self, outbox: &Outbox) -> Vec<Event> {
        self.events(outbox)
    }

    fn pending(&self, outbox: &Outbox) -> Vec<Event> {
        self.pending(outbox)
    }

    fn settle(&mut self, outbox: &Outbox, event: &Event) {
        MemoryDatabase::settle(self, outbox, event);
    }
}
