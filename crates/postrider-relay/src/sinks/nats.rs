//! Publishes to streams of NATS JetStream.
//!
//! The topic is the subject, and the stream that takes this subject keeps the event. `Ok` means
//! that the stream has confirmed it: it is stored, by a majority of the replicas if there are
//! several. All messages of a call are sent before the first confirmation is waited for.
//!
//! The `Nats-Msg-Id` is the event's id, or that of a replay's message, so a stream knows what it has already kept for as long as
//! its duplicate window; `check` compares that to how long the pipeline tries. One message can
//! fail while the next one is kept, so the pipeline sends only one of a key at a time.
//!
//! See `connection.rs` for why a connection is never mended, only replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::connection::Connection;
use self::options::CheckedOptions;
use super::last_try::LastTry;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod answer;
mod checking;
mod connecting;
mod connection;
mod encoding;
mod options;
mod publishing;
mod readback;
mod said;
mod scratch;
mod streams;

pub use options::Options;

/// Enough to keep a stream busy while the next call is prepared.
const CALLS_MAX: usize = 4;
/// Times [`CALLS_MAX`], it stays below the 10,000 messages that a stream lets wait before it
/// turns more away (its `max_buffered_msgs`).
const BATCH_EVENTS_MAX: usize = 1024;
/// Confirmed well within the time that a call has, even by a slow server.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Publishes to the streams of one NATS system.
pub struct NatsSink {
    options: CheckedOptions,
    /// What the server that we were connected to last takes.
    event_bytes_max: AtomicUsize,
    place: Mutex<Place>,
}

/// Where the connection is kept.
#[derive(Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    last_try: LastTry,
}

impl NatsSink {
    async fn connect(options: CheckedOptions) -> Result<Self, SinkError> {
        let sink = Self { options, event_bytes_max: AtomicUsize::new(0), place: Mutex::default() };
        sink.connection().await?;
        Ok(sink)
    }

    /// The connection, a new one if there is none or it has ended.
    async fn connection(&self) -> Result<Arc<Connection>, SinkError> {
        let connection = self.connection_of_place().await?;
        // A server may change it while it runs, and another one may have another limit.
        self.event_bytes_max.store(connection.bytes_max(), Ordering::Relaxed);
        Ok(connection)
    }

    async fn connection_of_place(&self) -> Result<Arc<Connection>, SinkError> {
        let asked_at = Instant::now();
        let mut place = self.place.lock().await;
        if let Some(connection) = place.connection.as_ref().filter(|one| one.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        place.last_try.since(asked_at)?;
        place.connection = None;
        let connected = connecting::connect(&self.options).await;
        let connection = connected.inspect_err(|error| place.last_try.failed(error))?;
        Ok(Arc::clone(place.connection.insert(Arc::new(connection))))
    }

    /// The connection, with the stream made if it should be: by whoever publishes, as a check
    /// changes nothing.
    async fn connection_to_publish(&self) -> Result<Arc<Connection>, SinkError> {
        let connection = self.connection().await?;
        if self.options.create_missing {
            let make = || streams::create_missing(&connection, &self.options);
            connection.stream_is_there.get_or_try_init(make).await?;
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
            event_bytes_max: self.event_bytes_max.load(Ordering::Relaxed),
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
        match self.connection_to_publish().await {
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
