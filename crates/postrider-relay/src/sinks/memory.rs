//! Keeps messages in memory: for tests, examples and measurements.
//!
//! A clone is a second handle on the same sink, so that one can be given to a pipeline and the
//! other asked what has arrived.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::sink::{Message, Sink, SinkCapabilities, SinkError};

/// A sink that keeps messages in memory.
#[derive(Clone, Debug)]
pub struct MemorySink {
    capabilities: SinkCapabilities,
    messages_max: usize,
    messages: Arc<Mutex<VecDeque<Message>>>,
    count: Arc<watch::Sender<u64>>,
}

impl MemorySink {
    /// A sink that keeps every message.
    pub fn new() -> Self {
        Self::keeping(usize::MAX)
    }

    /// A sink that keeps only the last messages. With 0 it only counts.
    pub fn keeping(messages_max: usize) -> Self {
        Self {
            capabilities: SinkCapabilities {
                name: "memory",
                ordered_by_key: true,
                deduplicates: false,
                event_bytes_max: usize::MAX,
                batch_events_max: 4096,
                batch_bytes_max: 8 * 1024 * 1024,
                calls_max: 1,
            },
            messages_max,
            messages: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The same sink with other capabilities.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: SinkCapabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The messages kept, in the order in which they arrived.
    pub fn messages(&self) -> Vec<Message> {
        self.lock().iter().cloned().collect()
    }

    /// How many messages have arrived, kept or not.
    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// Waits until at least so many messages have arrived.
    pub async fn wait_for(&self, count: u64) {
        let mut counts = self.count.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = counts.wait_for(|arrived| *arrived >= count).await;
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemorySink {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Sink for MemorySink {
    fn capabilities(&self) -> SinkCapabilities {
        self.capabilities.clone()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        if self.messages_max > 0 {
            let mut kept = self.lock();
            for message in messages {
                if kept.len() == self.messages_max {
                    kept.pop_front();
                }
                kept.push_back(message.clone());
            }
        }
        self.count.send_modify(|count| *count += messages.len() as u64);
        vec![Ok(()); messages.len()]
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use postrider::Event;

    use super::*;
    use crate::formats::Encoding;

    fn messages(ids: std::ops::Range<u32>) -> Vec<Message> {
        let message = |id: u32| {
            let event = Event::builder("Order", id.to_string(), "OrderPaid").build().unwrap();
            Encoding::default().encode(Arc::new(event)).unwrap()
        };
        ids.map(message).collect()
    }

    #[tokio::test]
    async fn a_clone_sees_what_arrives() {
        let sink = MemorySink::new();
        let handle = sink.clone();
        let (answers, ()) = tokio::join!(async { sink.publish(&messages(0..3)).await }, async {
            handle.wait_for(3).await;
        });
        assert_eq!(answers, vec![Ok(()); 3]);
        let keys: Vec<_> = handle.messages().into_iter().map(|message| message.key).collect();
        assert_eq!(keys, ["0", "1", "2"]);
    }

    #[tokio::test]
    async fn a_bounded_sink_keeps_the_last_and_counts_all() {
        let (last, none) = (MemorySink::keeping(2), MemorySink::keeping(0));
        for sink in [&last, &none] {
            sink.publish(&messages(0..5)).await;
            assert_eq!(sink.count(), 5);
        }
        let keys: Vec<_> = last.messages().into_iter().map(|message| message.key).collect();
        assert_eq!(keys, ["3", "4"]);
        assert!(none.messages().is_empty());
    }
}
