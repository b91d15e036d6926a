//! What every sink must do: the contract of [`Sink`], case by case.

mod answers;
mod contents;
mod trouble;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::Event;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use uuid::Uuid;

use super::Case;

/// A place that events go to, made for one case.
#[async_trait]
pub trait TestTarget: Send + Sync {
    /// What the backend can do.
    fn capabilities(&self) -> TargetCapabilities;

    /// What is sent there: by default to the topic of the event's aggregate type. Where all cases
    /// share a server, each has a topic of its own.
    fn encoding(&self) -> Encoding {
        Encoding::default()
    }

    /// Connects a sink to it.
    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError>;

    /// Everything that the target has kept, in the order of its arrival, found without the
    /// sink's help. Fails if something is torn.
    async fn arrivals(&self) -> Vec<Arrival>;

    /// A topic to which nothing can be sent, while others can be used. Only asked for where it is
    /// declared.
    async fn unusable_topic(&self) -> String {
        panic!("every topic can be used")
    }

    /// Topics of the server, the sink or its relay, which are not for events. Only asked for where
    /// they are declared.
    fn reserved_topics(&self) -> Vec<String> {
        panic!("no topic is reserved")
    }

    /// Makes the target behave like this from now on. Only what is declared is asked for.
    async fn behave(&self, behaviour: Behaviour);
}

/// What a backend can do, as far as cases differ by it.
#[derive(Clone, Copy, Debug)]
pub struct TargetCapabilities {
    /// The sink keeps the order of one key's messages in a call.
    pub ordered_by_key: bool,
    /// What is wrong with the sink when its target is [away](Behaviour::Away); `None` if it
    /// cannot be taken away.
    pub away: Option<FailureKind>,
    /// How else the target can misbehave, and what that means.
    pub misbehaviours: &'static [(Behaviour, FailureKind)],
    /// The target can [refuse](Behaviour::RefusesKey) some messages.
    pub refuses: bool,
    /// Whoever reads sees each event once, whatever happens to the relay and the target.
    pub exactly_once: bool,
    /// A topic can be any text.
    pub any_topic: bool,
    /// There are topics to which [nothing can be sent](TestTarget::unusable_topic).
    pub lacks_topics: bool,
    /// Headers that the protocol or the sink uses itself: an event cannot set them.
    pub reserved_headers: &'static [&'static str],
    /// There are topics that [belong to others](TestTarget::reserved_topics).
    pub reserves_topics: bool,
    /// The target can [hang up](Behaviour::HangsUpAt) on a message, and the sink hears it at once.
    pub hangs_up: bool,
    /// The largest body that the target takes with few headers.
    pub body_bytes_max: usize,
    /// A body that the sink finds too large; `None` if only the pipeline looks at that.
    pub too_large: Option<usize>,
    /// A call that takes longer hangs: it takes less even while it connects on a busy machine.
    pub call_max: Duration,
}

/// How a target behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// As it should.
    Well,
    /// It is not there.
    Away,
    /// It refuses messages of one key, as malformed.
    RefusesKey(&'static str),
    /// It answers with a status.
    Answers(u16),
    /// It answers messages of one key with a status.
    AnswersKey(&'static str, u16),
    /// It answers with a status and asks for a pause of so many seconds.
    AnswersPause(u16, u64),
    /// It sends the caller elsewhere.
    Redirects,
    /// It answers what nobody understands.
    Garbage,
    /// It takes a message and never answers.
    Hangs,
    /// It keeps the message and hangs up before the answer.
    LosesAnswer,
    /// It hangs up on whoever sends these bytes, and does not say why.
    HangsUpAt(&'static str),
}

/// What a target has kept of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The event's id.
    pub id: Uuid,
    /// The event's type.
    pub event_type: String,
    /// The topic.
    pub topic: String,
    /// The key.
    pub key: String,
    /// Headers of the event, and maybe others.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

/// What a case is tried on.
pub type Subject = Arc<dyn TestTarget>;

/// Every case.
pub fn cases() -> Vec<Case<Subject, TargetCapabilities>> {
    let mut cases = answers::cases();
    cases.extend(contents::cases());
    cases.extend(trouble::cases());
    cases
}

fn message(target: &Subject, event: Event) -> Message {
    let encoded = target.encoding().encode(Arc::new(event));
    encoded.expect("the templates need no field that an event lacks")
}

fn messages(target: &Subject, events: Vec<Event>) -> Vec<Message> {
    events.into_iter().map(|event| message(target, event)).collect()
}

fn ids(arrivals: &[Arrival]) -> Vec<u32> {
    let number = |arrival: &Arrival| super::numbered::number(arrival.id);
    arrivals.iter().map(number).collect()
}

async fn connect(target: &Subject) -> Box<dyn Sink> {
    let sink = target.connect().await;
    sink.expect("the sink can be connected")
}
