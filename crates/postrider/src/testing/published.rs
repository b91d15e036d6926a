//! What was published, wherever it is.

use super::MemoryDatabase;
use crate::event::Event;
use crate::outbox::Outbox;

/// Something that has published events: a database, of which it is the outbox in the table
/// `outbox`, or events that were read before.
///
/// For another outbox pass its events: `database.events(&outbox)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no published events",
    label = "pass a `MemoryDatabase`, a connection of rusqlite, or events",
    note = "with another client read the events, and pass them as `Vec<Event>`",
    note = "rusqlite is behind the feature `rusqlite` of postrider"
)]
pub trait Published {
    /// The events in the order they were committed, delivered or not.
    fn published(&self) -> Vec<Event>;
}

/// The published events of a database, in order, delivered or not.
///
/// # Panics
///
/// If the database cannot be read, or has a row that is no event.
#[track_caller]
pub fn published(database: &(impl Published + ?Sized)) -> Vec<Event> {
    database.published()
}

impl Published for MemoryDatabase {
    fn published(&self) -> Vec<Event> {
        self.events(&Outbox::new())
    }
}

impl Published for [Event] {
    fn published(&self) -> Vec<Event> {
        self.to_vec()
    }
}

impl<const N: usize> Published for [Event; N] {
    fn published(&self) -> Vec<Event> {
        self.to_vec()
    }
}

impl Published for Vec<Event> {
    fn published(&self) -> Vec<Event> {
        self.clone()
    }
}

impl<P: Published + ?Sized> Published for &P {
    fn published(&self) -> Vec<Event> {
        (**self).published()
    }
}

impl<P: Published + ?Sized> Published for &mut P {
    fn published(&self) -> Vec<Event> {
        (**self).published()
    }
}
