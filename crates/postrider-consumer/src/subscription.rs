//! A subscription: where deliveries come from, and where they are acknowledged.
//!
//! An implementation only translates. It neither retries a handler nor keeps an order: the
//! [runtime](crate::Consumer) does. What was received and not acknowledged comes again, to this
//! consumer or to another one of its group, and a delivery may come again although it was
//! acknowledged: the inbox takes care of it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// Where deliveries come from. All calls may be under way at the same time.
#[async_trait]
pub trait Subscription: Send + Sync + 'static {
    /// Names a delivery for its acknowledgement; cheap to clone.
    type Handle: Clone + Send + Sync + 'static;

    /// The broker's name, such as `kafka`, for messages and metrics.
    fn name(&self) -> &'static str;

    /// How long a delivery may be under way before the broker gives it to somebody else, unless
    /// it is [extended](Self::extend). `None` if it never does.
    fn visibility(&self) -> Option<Duration> {
        None
    }

    /// For how long the broker may deliver a message again: claims must be kept for longer.
    async fn redelivery(&self) -> Result<Redelivery, SubscriptionError> {
        Ok(Redelivery::Unknown)
    }

    /// Waits for deliveries, at least one and at most `max`. Those of one key come in their order.
    /// Nothing is lost if it is no longer waited for: what was received comes again.
    async fn receive(&self, max: usize) -> Result<Vec<Received<Self::Handle>>, SubscriptionError>;

    /// Tells the broker that deliveries are done with, for good.
    async fn acknowledge(&self, handles: Vec<Self::Handle>) -> Result<(), SubscriptionError>;

    /// Gives deliveries back, so that another consumer gets them at once. Without it they come
    /// again later.
    async fn release(&self, handles: Vec<Self::Handle>) -> Result<(), SubscriptionError> {
        drop(handles);
        Ok(())
    }

    /// Tells the broker that deliveries are still being worked on.
    async fn extend(&self, handles: &[Self::Handle]) -> Result<(), SubscriptionError> {
        let _ = handles;
        Ok(())
    }

    /// Whether a delivery has meanwhile passed to another consumer of the group, so that work on
    /// it need not begin.
    fn is_lost(&self, handle: &Self::Handle) -> bool {
        let _ = handle;
        false
    }

    /// Leaves the group, so that others take over at once.
    async fn close(&self) {}
}

/// For how long a broker may deliver a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// For so long after it was published.
    Within(Duration),
    /// For ever, because it keeps messages for ever.
    Unlimited,
    /// It depends on things that nobody can ask for, such as when they are acknowledged.
    Unknown,
}

/// A delivery, and the handle that acknowledges it.
#[derive(Debug)]
pub struct Received<H> {
    /// Acknowledges it.
    pub handle: H,
    /// What arrived.
    pub incoming: Incoming,
}

/// A message as it came from a broker, before anybody looked into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The topic, subject, exchange or stream.
    pub topic: String,
    /// The key, where the broker has one of its own.
    pub key: Option<String>,
    /// Headers, properties or fields, by the names that the broker's protocol gives them.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// Where it is, for an operator: `orders/3@1207`. The same for each delivery of the message.
    pub place: String,
    /// It was dead, and somebody wants it to be handled, whatever came after it.
    pub is_revived: bool,
}

/// The broker could not be reached, or refused. The runtime tries again.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SubscriptionError {
    /// What is wrong and how it is mended.
    pub message: String,
    /// What the client said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// No later attempt can succeed: the runtime ends with it.
    pub is_final: bool,
}

impl SubscriptionError {
    /// An error that may pass.
    pub fn new(
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { message: message.into(), source: Some(source.into()), is_final: false }
    }

    /// A mistake that somebody has to mend.
    pub fn mistake(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None, is_final: true }
    }
}
