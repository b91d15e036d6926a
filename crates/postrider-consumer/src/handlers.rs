//! Which handler an event goes to, and what it is given.

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::ops::Deref;
use std::pin::Pin;

use postrider::{Event, EventType, Sequence};
use serde::de::DeserializeOwned;

use crate::decoding::UNKNOWN;

/// What a handler fails with; `?` makes it of any error.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// What a handler returns: `Box::pin(async move { … })`.
pub type Handling<'t> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 't>>;

/// An error that no later attempt mends: the event becomes a dead letter at once.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);

/// An event as a handler gets it. It is the payload, by [`Deref`], and the event around it.
#[derive(Clone, Debug)]
pub struct Delivered<E> {
    /// The payload.
    pub payload: E,
    /// The event: its id, key, headers and the payload's bytes.
    pub event: Event,
    /// How it stands to the last event of its key, if the consumer
    /// [is told](crate::Consumer::versions_by) how to find that out.
    pub sequence: Option<Sequence>,
}

impl<E> Deref for Delivered<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.payload
    }
}

/// What becomes of an event that nobody handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unhandled {
    /// It is acknowledged, and nothing else happens.
    Skip,
    /// It becomes a dead letter.
    Bury,
}

type Handler<Tx> =
    Box<dyn for<'t> Fn(&'t mut Tx, &'t Event, Option<Sequence>) -> Handling<'t> + Send + Sync>;

/// What the handlers say of an event.
pub(crate) enum Route<'h, Tx> {
    Handle(&'h Handler<Tx>),
    Skip,
    Bury(String),
}

/// The handlers by type and version.
pub(crate) struct Handlers<Tx> {
    by_version: HashMap<(&'static str, u32), Handler<Tx>>,
    types: HashSet<&'static str>,
    twice: Option<(&'static str, u32)>,
    pub(crate) unknown_type: Unhandled,
    pub(crate) unknown_version: Unhandled,
}

impl<Tx: 'static> Handlers<Tx> {
    pub(crate) fn new() -> Self {
        Self {
            by_version: HashMap::new(),
            types: HashSet::new(),
            twice: None,
            unknown_type: Unhandled::Skip,
            unknown_version: Unhandled::Bury,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_version.is_empty()
    }

    /// A type and version that two handlers are for.
    pub(crate) fn twice(&self) -> Option<(&'static str, u32)> {
        self.twice
    }

    /// Adds a handler.
    pub(crate) fn add<E, F>(&mut self, handler: F)
    where
        E: EventType + DeserializeOwned + Send + 'static,
        F: for<'t> Fn(&'t mut Tx, Delivered<E>) -> Handling<'t> + Send + Sync + 'static,
    {
        let handler: Handler<Tx> =
            Box::new(move |tx, event, sequence| {
                match serde_json::from_slice::<E>(event.payload()) {
                    Ok(payload) => {
                        handler(tx, Delivered { payload, event: event.clone(), sequence })
                    }
                    Err(error) => {
                        let rejected = Rejected(format!(
                            "the payload is no {} of version {}: {error}",
                            E::EVENT_TYPE,
                            E::EVENT_VERSION
                        ));
                        Box::pin(std::future::ready(Err(rejected.into())))
                    }
                }
            });
        let handles = (E::EVENT_TYPE, E::EVENT_VERSION);
        if self.by_version.insert(handles, handler).is_some() {
            self.twice = Some(handles);
        }
        self.types.insert(E::EVENT_TYPE);
    }

    /// What is to be done with an event.
    pub(crate) fn route(&self, event: &Event) -> Route<'_, Tx> {
        let (event_type, version) = (event.event_type(), event.event_version());
        // A borrowed type cannot look up a key that holds a static one.
        let known = self.types.get(event_type).copied();
        let handler = known.and_then(|known| self.by_version.get(&(known, version)));
        match (handler, known) {
            (Some(handler), _) => Route::Handle(handler),
            (None, Some(_)) if self.unknown_version == Unhandled::Bury => {
                let known: Vec<_> = self.versions(event_type).map(|v| v.to_string()).collect();
                Route::Bury(format!(
                    "no handler for {event_type} of version {version}, only for {}",
                    known.join(", ")
                ))
            }
            // It was dead as no event, and would be gone.
            (None, None) if event_type == UNKNOWN => {
                Route::Bury("it is no event that can be understood".to_owned())
            }
            (None, None) if self.unknown_type == Unhandled::Bury => {
                Route::Bury(format!("no handler for events of the type {event_type}"))
            }
            _ => Route::Skip,
        }
    }

    fn versions(&self, event_type: &str) -> impl Iterator<Item = u32> {
        let mut versions: Vec<_> =
            self.by_version.keys().filter(|(of, _)| *of == event_type).map(|key| key.1).collect();
        versions.sort_unstable();
        versions.into_iter()
    }
}
