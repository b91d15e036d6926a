//! The events that a unit of work ends with.

use crate::event::{Event, InvalidEvent, ToEvent};

/// The events of one transaction, to be published by whoever commits it.
///
/// A closure for `Outbox::transact` has to return them, so that forgetting to publish does not
/// compile. They are made by [`events!`](crate::events!) or [`Events::of`]; a transaction
/// without events says so with [`Events::none`].
#[derive(Clone, Debug)]
#[must_use = "events are published only if they are returned to `transact`"]
pub struct Events(Result<Vec<Event>, InvalidEvent>);

impl Events {
    /// No events: nothing happened that others should know.
    pub fn none() -> Self {
        Self(Ok(Vec::new()))
    }

    /// Events of one type.
    pub fn of<E: ToEvent>(events: impl IntoIterator<Item = E>) -> Self {
        Self(events.into_iter().map(|event| event.to_event()).collect())
    }

    /// These events and then another one.
    pub fn and(self, event: &(impl ToEvent + ?Sized)) -> Self {
        Self(self.0.and_then(|mut events| {
            events.push(event.to_event()?);
            Ok(events)
        }))
    }

    /// The events in order, or why one of them is invalid.
    pub fn into_result(self) -> Result<Vec<Event>, InvalidEvent> {
        self.0
    }
}

/// Makes [`Events`] of one or more events, which may be of different types.
///
/// ```
/// # use postrider::{Event, events};
/// # let (paid, shipped) = (Event::builder("Order", "42", "OrderPaid").build()?,
/// #     Event::builder("Order", "42", "OrderShipped").build()?);
/// let events = events![paid, shipped];
/// # assert_eq!(events.into_result()?.len(), 2);
/// # Ok::<_, postrider::InvalidEvent>(())
/// ```
#[macro_export]
macro_rules! events {
    () => {
        ::core::compile_error!("name the events, or say `Events::none()` if there are none")
    };
    ($($event:expr),+ $(,)?) => {
        $crate::Events::none()$(.and(&$event))+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: &str) -> Event {
        Event::builder("Order", "42", event_type).build().unwrap()
    }

    #[test]
    fn events_keep_their_order() {
        let events = events![event("A"), &event("B")].and(&event("C")).into_result().unwrap();
        let types: Vec<&str> = events.iter().map(Event::event_type).collect();
        assert_eq!(types, ["A", "B", "C"]);
        assert_eq!(Events::of(&events).into_result().unwrap(), events);
        assert_eq!(Events::none().into_result(), Ok(vec![]));
    }

    #[test]
    fn the_first_invalid_event_is_reported() {
        struct Broken;
        impl ToEvent for Broken {
            fn to_event(&self) -> Result<Event, InvalidEvent> {
                Err(InvalidEvent::VersionZero)
            }
        }
        let events = events![event("A"), Broken, event("C")];
        assert_eq!(events.into_result(), Err(InvalidEvent::VersionZero));
    }
}
