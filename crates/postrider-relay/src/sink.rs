//! The contract of a sink: it publishes to one broker or endpoint, and only translates.
//!
//! A sink never retries, sleeps, logs per event or batches across calls: the
//! [pipeline](crate::pipeline) does that for all of them. It answers with exactly one result per
//! message, in their order, and `Ok` means durable by that broker's strictest ordinary
//! definition.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use postrider::Event;
use tokio::time::Instant;
use uuid::Uuid;

pub use crate::failure::{FailureKind, SinkError};

/// Publishes to one broker or endpoint.
#[async_trait]
pub trait Sink: Send + Sync {
    /// What this sink can do.
    fn capabilities(&self) -> SinkCapabilities;

    /// Finds out, without changing anything, whether publishing can work. The answer holds what
    /// works and yet is less safe than it could be, a sentence for each, with what would mend it.
    async fn check(&self) -> Result<Vec<String>, SinkError>;

    /// Tells until when the next call may publish, because another relay may take over then;
    /// `None` if none can. Whoever takes long before it sends looks at it again.
    fn allow_until(&self, _until: Option<Instant>) {}

    /// Publishes messages; the answer has exactly one result for each, in their order.
    ///
    /// Messages of different keys are independent: the failure of one says nothing about
    /// another, unless the answer says that they were refused
    /// [in company](SinkError::in_company). With [`ordered_by_key`](SinkCapabilities::ordered_by_key), messages of one key
    /// become durable in their order, and after one has failed, no later one of its key does.
    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>>;

    /// Whether it wants to hear what is [settled](Self::settled).
    fn follows_settlements(&self) -> bool {
        false
    }

    /// Tells what the source has written down of events, by their ids: those that were delivered
    /// never come again, those that were set aside do, at some time. An event of which nothing was
    /// told comes again after a crash. Only for sinks that
    /// [want to hear it](Self::follows_settlements).
    fn settled(&self, _delivered: &[Uuid], _set_aside: &[Uuid]) {}

    /// Ends the connection. Nothing is under way any more.
    async fn close(self: Box<Self>) -> Result<(), SinkError>;
}

/// What a sink can do, as data: the pipeline plans by it and the suite checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkCapabilities {
    /// The kind of sink, such as `http`.
    pub name: &'static str,
    /// One call may hold several messages of one key: the sink keeps their order and lets no
    /// later one of a key become durable after one has failed.
    pub ordered_by_key: bool,
    /// The sink recognises a [`deduplication_id`](Message::deduplication_id) that it has already
    /// made durable, for as long as it remembers it, and does not store the message again.
    pub deduplicates: bool,
    /// Largest message body that can be accepted.
    pub event_bytes_max: usize,
    /// Most messages in one call.
    pub batch_events_max: usize,
    /// Most bytes in one call; a single message may be larger.
    pub batch_bytes_max: usize,
    /// Most calls at the same time.
    pub calls_max: usize,
}

/// An event with its route and encoding worked out, ready to be sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// The event.
    pub event: Arc<Event>,
    /// By which a sink that [deduplicates](SinkCapabilities::deduplicates) knows that it has the
    /// message: the event's id, or one of its own for each [replay](crate::replay), which is to be
    /// stored although the event was seen. Consumers know the event by its id, which is the same.
    pub deduplication_id: Uuid,
    /// Where it goes, for sinks that have topics, subjects, queues or streams.
    pub topic: String,
    /// What keeps related messages together, for sinks that have partitions.
    pub key: String,
    /// Headers to send: the event's own and the configured ones.
    pub headers: Vec<(String, String)>,
    /// Facts about the event that its [format](crate::formats) sends beside the body: see
    /// [`attribute_values`](Self::attribute_values). The sink gives their names the prefix that
    /// its protocol uses.
    pub attributes: Attributes,
    /// The media type of the body.
    pub content_type: String,
    /// What is sent.
    pub body: Bytes,
}

/// Which facts about the event are sent beside the body, and by which convention. The facts
/// themselves are worked out only when a sink asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attributes {
    /// None: the body holds them all.
    None,
    /// Postrider's own: `event_type`, `aggregate_type` …
    #[default]
    Plain,
    /// The binary mode of CloudEvents: `id`, `source`, `type` …
    CloudEvents {
        /// The context in which the event happened, a URI reference.
        source: String,
    },
    /// Those of Debezium's outbox event router, which have no prefix: `id`, `eventType`.
    Debezium,
}

impl Message {
    /// The name, without a prefix, and the value of each fact sent beside the body.
    pub fn attribute_values(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        crate::formats::attribute_values(self)
    }

    /// Whether a header may not be sent under this name, because a fact beside the body has it
    /// as it stands, without a prefix. Cases are not told apart.
    pub fn reserves(&self, name: &str) -> bool {
        crate::formats::is_attribute_without_prefix(&self.attributes, name)
    }
}
