//! Writes one line of JSON per message to the standard output.
//!
//! `Ok` means that the lines were written and flushed: a pipe holds them then, and whether its
//! reader keeps them is its own affair. A reader that is gone is an operator's matter, as nothing
//! can bring it back.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::json_lines::lines;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod options;

pub use options::Options;

/// Writes to the standard output of this process.
pub struct StdoutSink {
    // Taken before the write is handed to a thread, so that a call which is given up while it
    // waits writes nothing, and calls write in the order in which they came.
    output: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl StdoutSink {
    fn new(output: impl Write + Send + 'static) -> Self {
        Self { output: Arc::new(Mutex::new(Box::new(output))) }
    }
}

impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutSink").finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for StdoutSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "stdout",
            ordered_by_key: true,
            deduplicates: false,
            event_bytes_max: usize::MAX,
            batch_events_max: 1024,
            batch_bytes_max: 1024 * 1024,
            calls_max: 1,
        }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let lines = lines(messages);
        let mut output = Arc::clone(&self.output).lock_owned().await;
        let written = tokio::task::spawn_blocking(move || {
            output.write_all(&lines)?;
            output.flush()
        });
        let answer = match written.await {
            Ok(written) => written.map_err(|error| failure(&error)),
            Err(_) => Err(SinkError::new(FailureKind::Unavailable, "the relay is shutting down")),
        };
        vec![answer; messages.len()]
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

fn failure(error: &io::Error) -> SinkError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => SinkError::new(
            FailureKind::Misconfigured,
            "whoever read the standard output is gone; start it again together with the relay",
        ),
        _ => SinkError::new(
            FailureKind::Unavailable,
            format!("cannot write to the standard output: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use postrider::Event;

    use super::*;
    use crate::formats::Encoding;

    struct Fails(io::ErrorKind);

    impl Write for Fails {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[tokio::test]
    async fn a_line_counts_once_it_is_flushed() {
        let event = Event::builder("Order", "42", "OrderPaid").build().unwrap();
        let messages = vec![Encoding::default().encode(Arc::new(event)).unwrap(); 2];
        for (kind, expected) in [
            (io::ErrorKind::BrokenPipe, FailureKind::Misconfigured),
            (io::ErrorKind::StorageFull, FailureKind::Unavailable),
        ] {
            let answers = StdoutSink::new(Fails(kind)).publish(&messages).await;
            assert_eq!(answers.len(), 2);
            for answer in answers {
                assert_eq!(answer.unwrap_err().kind, expected);
            }
        }
        assert_eq!(StdoutSink::new(io::sink()).publish(&messages).await, [Ok(()), Ok(())]);
    }
}
