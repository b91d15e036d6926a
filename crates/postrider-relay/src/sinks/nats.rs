//! Publishes to streams of NATS JetStream.
//!
//! The topic is the subject, and the stream that takes this subject keeps the event. `Ok` means
//! that the stream has confirmed it: it is stored, by a majority of the replicas if there are
//! several. All messages of a call are sent before the first confirmation is waited for.
//!
//! The event's id is the `Nats-Msg-Id`, so a stream knows what it has already kept for as long as
//! its duplicate window; `check` compares that to how long the pipeline tries. One message can
//! fail while the next one is kept, so the pipeline sends only one of a key at a time.
//!
//! See `connection.rs` for why a connection is never mended, only replaced.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::connection::Connection;
use self::options::CheckedOptions;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod answer;
mod checking;
mod connecting;
mod connection;
mod encoding;
mod options;
mod publishing;
mod said;
mod streams;

pub use options::Options;

/// Enough to keep a stream busy while the next call is prepared.
const CALLS_MAX: usize = 4;
/// Times [`CALLS_MAX`], it stays below the 10,000 messages that a stream lets wait before it
/// turns more away (its `max_buffered_msgs`).
const BATCH_EVENTS_MAX: usize = 1000;
/// Confirmed well within the time that a call has, even by a slow server.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Publishes to the streams of one NATS system.
pub struct NatsSink {
    options: CheckedOptions,
    event_bytes_max: usize,
    place: Mutex<Place>,
}

/// Where the connection is kept.
#[derive(Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    /// When connecting failed last, and why.
    failed: Option<(Instant, SinkError)>,
}

impl NatsSink {
    async fn connect(options: CheckedOptions) -> Result<Self, SinkError> {
        let mut sink = Self { options, event_bytes_max: 0, place: Mutex::default() };
        sink.event_bytes_max = sink.connection().await?.bytes_max();
        Ok(sink)
    }

    /// The connection, a new one if there is none or it has ended.
    async fn connection(&self) -> Result<Arc<Connection>, SinkError> {
        let asked_at = Instant::now();
        let mut place = self.place.lock().await;
        if let Some(connection) = place.connection.as_ref().filter(|one| one.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        // Somebody has just tried, while we waited for our turn.
        if let Some((at, error)) = &place.failed
            && *at >= asked_at
        {
            return Err(error.clone());
        }
        place.connection = None;
        match self.connect_anew().await {
            Ok(connection) => Ok(Arc::clone(place.connection.insert(Arc::new(connection)))),
            Err(error) => {
                place.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect_anew(&self) -> Result<Connection, SinkError> {
        let connection = connecting::connect(&self.options).await?;
        if self.options.create_missing {
            streams::create_missing(&connection, &self.options).await?;
        }
        Ok(connection)
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "nats",
            ordered_by_key: false,
            deduplicates: true,
            event_bytes_max: self.event_bytes_max,
            batch_events_max: BATCH_EVENTS_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            calls_max: CALLS_MAX,
        }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        checking::check(&*self.connection().await?, &self.options).await
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        if messages.is_empty() {
            return Vec::new();
        }
        match self.connection().await {
            Ok(connection) => publishing::publish(&connection, &self.options, messages).await,
            Err(error) => vec![Err(error); messages.len()],
        }
    }

    /// Nothing is under way any more, so there is nothing to wait for.
    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

impl std::fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let servers = &self.options.servers_shown;
        f.debug_struct("NatsSink").field("servers", servers).finish_non_exhaustive()
    }
}

fn misconfigured(message: impl Into<String>) -> SinkError {
    SinkError::new(FailureKind::Misconfigured, message)
}

fn unavailable(message: impl Into<String>) -> SinkError {
    SinkError::new(FailureKind::Unavailable, message)
}
