//! How a run calls its source and its sink: patient with the one, and never longer than allowed
//! with the other.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::Status;
use super::decision::{backoff, random_jitter};
use super::engine::Call;
use crate::failure::{FailureKind, SinkError};
use crate::sink::{Message, Sink};
use crate::source::{Lease, Source, SourceError, SourceErrorKind};
use crate::telemetry::spans::{SendSpan, Spans};

/// First and longest pause before an unavailable source is asked again.
const SOURCE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a sink is checked that was not there at the start, until it is.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(5);

pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A call of the sink that has come to its end.
pub(super) struct Published {
    pub(super) call: Call<Message>,
    /// One for each message.
    pub(super) results: Vec<Result<(), SinkError>>,
    pub(super) took: Duration,
    pub(super) span: SendSpan,
}

/// Whether nothing may be sent under this lease any more.
pub(super) fn is_over(lease: Lease) -> bool {
    lease.until.is_some_and(|until| Instant::now() >= until)
}

/// Ends when the source's lease does; never, if it cannot pass on.
pub(super) async fn lease_end(source: &dyn Source) {
    while let Some(until) = source.lease().until {
        if Instant::now() >= until {
            return;
        }
        sleep_until(until).await;
    }
    std::future::pending().await
}

/// Finds out whether publishing can work, never longer than allowed.
pub(super) async fn check(sink: &dyn Sink, longest: Duration) -> Result<Vec<String>, SinkError> {
    timeout(longest, sink.check()).await.unwrap_or_else(|_| {
        Err(SinkError::new(FailureKind::Unavailable, "no answer to the check in time"))
    })
}

/// Ends once a sink is there that was not. What else is wrong with it is found out by publishing.
pub(super) async fn until_there(sink: &dyn Sink, longest: Duration) {
    loop {
        sleep(CHECK_EVERY).await;
        if check(sink, longest).await.is_ok() {
            return;
        }
    }
}

/// Calls the sink; whatever happens, there is an answer for every message.
pub(super) async fn publish(
    source: &dyn Source,
    sink: &dyn Sink,
    spans: &Spans,
    call: Call<Message>,
    longest: Duration,
) -> Published {
    // Looked at when the call begins: the process may have stood still since it was decided on.
    let lease = source.lease();
    if is_over(lease) {
        let error = SinkError::new(FailureKind::Unavailable, "not sent: the lease has run out");
        let results = vec![Err(error); call.messages.len()];
        return Published { call, results, took: Duration::ZERO, span: SendSpan::none() };
    }
    sink.allow_until(lease.until);
    let begun = Instant::now();
    let span = spans.send(&call.messages);
    let publishing = AssertUnwindSafe(sink.publish(&call.messages)).catch_unwind();
    let problem = match timeout(longest, span.around(publishing)).await {
        Ok(Ok(results)) if results.len() == call.messages.len() => {
            return Published { call, results, took: begun.elapsed(), span };
        }
        Ok(Ok(results)) => {
            let (given, wanted) = (results.len(), call.messages.len());
            format!("the sink answered for {given} of {wanted} messages; this is a bug in the sink")
        }
        Ok(Err(_)) => "the sink panicked; this is a bug in the sink".to_owned(),
        Err(_) => format!("the sink did not answer within {longest:?}"),
    };
    let error = SinkError::new(FailureKind::Failed, problem);
    let results = vec![Err(error); call.messages.len()];
    Published { call, results, took: begun.elapsed(), span }
}

/// Calls a source until it is available.
pub(super) async fn patiently<'a, T>(
    pipeline: &str,
    status: &watch::Sender<Status>,
    mut call: impl FnMut() -> BoxFuture<'a, Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let mut failures = 0;
    loop {
        let result = call().await;
        let Err(error) = &result else {
            if failures > 0 {
                info!(pipeline, "the source is back");
                status.send_modify(|status| status.source_trouble = None);
            }
            return result;
        };
        if error.kind != SourceErrorKind::Unavailable {
            return result;
        }
        let error = error.details();
        if failures == 0 {
            warn!(pipeline, error, "the source is not available; trying again");
        }
        status.send_modify(|status| status.source_trouble = Some(error));
        let (initial, max) = SOURCE_PAUSES;
        sleep(backoff(initial, max, failures, random_jitter())).await;
        failures += 1;
    }
}

/// Waits for the future in the slot, for ever if there is none.
pub(super) async fn wait<T>(slot: &mut Option<BoxFuture<'_, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
