//! How a collector is reached.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;
use tokio::runtime::{Builder, Runtime};
use tracing::{info, warn};

/// An answer says little; whatever is longer is cut off.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Sends to a collector, one request at a time.
#[derive(Debug)]
pub(super) struct Collector {
    /// What is sent.
    what: &'static str,
    client: reqwest::Client,
    /// The thread that sends belongs to nobody else's runtime, and it has none of its own.
    runtime: Runtime,
    /// The last request failed.
    in_trouble: AtomicBool,
}

impl Collector {
    pub(super) fn new(
        what: &'static str,
        timeout: Duration,
    ) -> Result<Self, Box<dyn StdError + Send + Sync>> {
        let client =
            reqwest::Client::builder().timeout(timeout).redirect(Policy::none()).build()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { what, client, runtime, in_trouble: AtomicBool::new(false) })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.client.execute(request.try_into()?).await?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - body.len())]);
            if body.len() == ANSWER_BYTES_MAX {
                break;
            }
        }
        *response.body_mut() = body.into();
        Ok(response)
    }

    /// Says when it begins to fail and when it works again, and nothing in between.
    fn tell(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let what = self.what;
        let trouble = match sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the collector answered {}", response.status())),
            Err(error) => Some(root_cause(&**error)),
        };
        match trouble {
            Some(error) if !self.in_trouble.swap(true, Relaxed) => {
                warn!(what, error, "not exported; everything else goes on");
            }
            None if self.in_trouble.swap(false, Relaxed) => info!(what, "exported again"),
            Some(_) | None => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    /// Called by the library on threads that do nothing else, and there it may block.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.runtime.block_on(self.send(request));
        self.tell(&sent);
        sent
    }
}

/// What an error comes from in the end. Those above it name the URL.
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}
