//! What Postrider sends, for peers that send the same without it.
//!
//! Events and messages are made in the peer's loop, by the relay's own source and encoding. What a
//! sink then makes of a message nobody else can call, so the peers do it once more; before
//! anything is measured, each sends one message, and [`compare`] looks at what has arrived.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::Duration;

use postrider_relay::formats::Encoding;
use postrider_relay::sink::Message;
use postrider_relay::source::{BatchLimit, Settlement, Source as _, Verdict};
use postrider_relay::sources::memory::{Generated, MemoryOutbox, MemorySource};

use super::{sink, to_topic};
use crate::Outcome;

/// As many as one call of the Redis sink has.
pub(super) const BATCH: usize = 500;
/// By what name brokers get the media type.
pub(super) const CONTENT_TYPE: &str = "content-type";

/// The messages that a pipeline would make of so many events from memory.
pub(super) struct Messages {
    source: MemorySource,
    encoding: Encoding,
}

impl Messages {
    pub(super) async fn start(events: u64, topic: &str) -> Outcome<Self> {
        let source = MemoryOutbox::generated(Generated::new(events)).connect();
        source.resume().await?;
        Ok(Self { source, encoding: to_topic(topic)? })
    }

    /// The next [`BATCH`]; at the end there are none.
    pub(super) async fn next(&self) -> Outcome<Vec<Message>> {
        let limit = BatchLimit { events: BATCH, bytes: usize::MAX, wait: Duration::ZERO };
        let batch = self.source.next_batch(limit).await?;
        let settled = |handle| Settlement { handle, verdict: Verdict::Delivered };
        let settled: Vec<_> = batch.iter().map(|record| settled(record.handle)).collect();
        self.source.settle(&settled).await?;
        let events = batch.into_iter().map(|record| record.event);
        events.map(|event| Ok(self.encoding.encode(event.map_err(|bad| bad.reason)?)?)).collect()
    }
}

/// The facts beside the payload, by the names that every broker gets.
pub(super) fn facts(message: &Message) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    let facts = message.attribute_values();
    let name = |fact: &str| format!("postrider-{fact}").replace('_', "-");
    let names = NAMES.get_or_init(|| facts.iter().map(|(fact, _)| name(fact)).collect());
    names.iter().map(String::as_str).zip(facts.into_iter().map(|(_, value)| value))
}

/// The same with the key and the media type, for brokers that have no place of their own for them.
pub(super) fn texts(message: &Message) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let own = [("postrider-key", &message.key), (CONTENT_TYPE, &message.content_type)];
    facts(message).chain(own.map(|(name, value)| (name, Cow::Borrowed(value.as_str()))))
}

/// One message, in a batch of its own.
pub(super) async fn one(topic: &str) -> Outcome<Vec<Message>> {
    Messages::start(1, topic).await?.next().await
}

/// Publishes messages as Postrider does.
pub(super) async fn publish(url: &str, options: &str, messages: &[Message]) -> Outcome<()> {
    let sink = sink(url, options).await?;
    for result in sink.publish(messages).await {
        result?;
    }
    Ok(sink.close().await?)
}

/// Fails if a peer does not send what Postrider sends.
pub(super) fn compare<T: Debug + PartialEq>(peers: &T, ours: &T) -> Outcome<()> {
    if peers == ours {
        return Ok(());
    }
    Err(format!("the peer sends {peers:?}, and postrider {ours:?}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_messages_come_once_and_have_their_facts() {
        let messages = Messages::start(BATCH as u64 + 1, "topic").await.unwrap();
        let (all, last) = (messages.next().await.unwrap(), messages.next().await.unwrap());
        assert_eq!((all.len(), last.len()), (BATCH, 1));
        assert!(messages.next().await.unwrap().is_empty());
        let texts: Vec<_> = texts(&last[0]).collect();
        let names: Vec<_> = texts.iter().map(|(name, _)| *name).collect();
        let expected = [
            "postrider-id",
            "postrider-aggregate-type",
            "postrider-aggregate-id",
            "postrider-event-type",
            "postrider-event-version",
            "postrider-occurred-at",
            "postrider-key",
            "content-type",
        ];
        assert_eq!(names, expected);
        assert_eq!(texts[0].1, last[0].event.id().to_string());
        assert_eq!((&*texts[6].1, &*texts[7].1), ("501", "text/plain"));
    }
}
