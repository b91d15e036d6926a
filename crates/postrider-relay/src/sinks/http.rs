//! Posts each event to an HTTP endpoint, as [Standard Webhooks] 1.0 describes it.
//!
//! One request per event; `Ok` means that the endpoint has answered with a status of 2xx.
//! Requests run at the same time for different keys, over connections that are kept open.
//! Redirects are not followed and proxies of the environment are not used: a request goes to the
//! configured address or nowhere, and not to a private one unless that is allowed. See
//! `request.rs` for the headers and `response.rs` for what each answer means. With https the
//! certificate is always verified.
//!
//! [Standard Webhooks]: https://github.com/standard-webhooks/standard-webhooks

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use reqwest::dns::Resolve;
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Client, Method, Response, redirect};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::{Host, Url};

#[cfg(feature = "https")]
use self::handshake::Handshake;
use self::options::CheckedOptions;
use self::request::Configured;
use self::signature::Signer;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod address;
#[cfg(feature = "https")]
mod handshake;
mod options;
mod request;
mod resolver;
mod response;
mod signature;
#[cfg(test)]
mod tests;

pub use options::Options;

/// Most bytes of an answer's body that are read, only so that its connection can be used again.
const DRAIN_BYTES_MAX: usize = 64 * 1024;
/// Longest time spent on that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an unused connection is kept: less than most servers do, so that a request seldom
/// meets a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Posts to one endpoint.
pub struct HttpSink {
    client: Client,
    resolver: Arc<dyn Resolve>,
    url: Url,
    signer: Signer,
    secret_headers: HeaderMap,
    event_headers: Vec<HeaderName>,
    check_method: Option<Method>,
    #[cfg(feature = "https")]
    handshake: Option<Handshake>,
    timeout: Duration,
    connect_timeout: Duration,
    concurrency: usize,
    event_bytes_max: usize,
}

impl HttpSink {
    fn new(
        options: &Options,
        checked: CheckedOptions,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, SinkError> {
        // A host that drops packets must be told from one that is slow to answer.
        let connect_timeout = options.connect_timeout.min(options.timeout / 2);
        let client = Client::builder();
        #[cfg(feature = "https")]
        let handshake = Handshake::new(options, &checked.url)?;
        #[cfg(feature = "https")]
        let client = match &handshake {
            Some(handshake) => client.tls_backend_preconfigured(handshake.client_config()),
            None => client,
        };
        let client = client
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::clone(&resolver))
            .timeout(options.timeout)
            .connect_timeout(connect_timeout)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(options.concurrency)
            .build()
            .map_err(|error| {
                let message = format!("cannot make an HTTP client: {}", error.without_url());
                SinkError::new(FailureKind::Misconfigured, message)
            })?;
        Ok(Self {
            client,
            resolver,
            url: checked.url,
            signer: checked.signer,
            secret_headers: checked.secret_headers,
            event_headers: checked.event_headers,
            check_method: options.check_method.clone(),
            #[cfg(feature = "https")]
            handshake,
            timeout: options.timeout,
            connect_timeout,
            concurrency: options.concurrency,
            event_bytes_max: options.event_bytes_max,
        })
    }

    async fn send(&self, message: &Message) -> Result<(), SinkError> {
        let now = SystemTime::now();
        let configured =
            Configured { secret_headers: &self.secret_headers, allowed: &self.event_headers };
        let headers = request::headers(message, &self.signer, configured, now)?;
        let request =
            self.client.post(self.url.clone()).headers(headers).body(message.body.clone());
        let answer = request.send().await.map_err(|error| self.no_answer(error))?;
        let verdict =
            response::verdict(answer.status(), answer.headers(), &self.url, SystemTime::now());
        drain(answer).await;
        verdict
    }

    fn no_answer(&self, error: reqwest::Error) -> SinkError {
        #[cfg(feature = "https")]
        if let Some(refused) = handshake::refused(&error, &self.url) {
            return refused;
        }
        response::no_answer(error, &self.url, self.timeout)
    }

    /// Finds out whether the endpoint takes connections, and with https whether it is trusted.
    async fn try_connection(&self) -> Result<(), SinkError> {
        let addresses = self.addresses().await?;
        let stream = TcpStream::connect(&addresses[..]).await;
        let stream = stream.map_err(|error| response::no_connection(&error, &self.url))?;
        #[cfg(feature = "https")]
        if let Some(handshake) = &self.handshake {
            handshake.try_with(stream, &self.url).await?;
        }
        #[cfg(not(feature = "https"))]
        drop(stream);
        Ok(())
    }

    /// Asks the endpoint by another method than an event's. Answers with what gives cause for
    /// concern.
    async fn ask(&self, method: &Method) -> Result<Vec<String>, SinkError> {
        let request = self.client.request(method.clone(), self.url.clone());
        let request = request.headers(self.secret_headers.clone());
        let answer = request.send().await.map_err(|error| self.no_answer(error))?;
        let status = answer.status();
        drain(answer).await;
        let origin = response::origin(&self.url);
        let advice = match status.as_u16() {
            401 | 403 | 407 => "check the credentials in secret_headers",
            404 | 410 => "check the path of url",
            // There may be no answer to this method, and yet one to POST.
            405 | 501 => return Ok(Vec::new()),
            500.. => "its log may say why",
            _ => return Ok(Vec::new()),
        };
        Ok(vec![format!("{origin} answered {status} to {method}; {advice}")])
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, SinkError> {
        let port = self.url.port_or_known_default().unwrap_or_default();
        let name = match self.url.host() {
            Some(Host::Ipv4(address)) => return Ok(vec![(address, port).into()]),
            Some(Host::Ipv6(address)) => return Ok(vec![(address, port).into()]),
            Some(Host::Domain(name)) => name.parse(),
            None => "".parse(),
        };
        let name = name.map_err(|error| response::no_connection(&error, &self.url))?;
        match self.resolver.resolve(name).await {
            Ok(found) => Ok(found.map(|address| (address.ip(), port).into()).collect()),
            Err(error) => Err(response::no_connection(&*error, &self.url)),
        }
    }
}

/// Reads the rest of a short answer, so that its connection can be used again. A long or slow
/// one is dropped, and its connection with it.
async fn drain(mut answer: Response) {
    let read = async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = answer.chunk().await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    // The status has decided already: it does not matter how this ends.
    let _ = timeout(DRAIN_TIMEOUT, read).await;
}

#[async_trait]
impl Sink for HttpSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "http",
            ordered_by_key: false,
            deduplicates: false,
            event_bytes_max: self.event_bytes_max,
            batch_events_max: 1,
            batch_bytes_max: self.event_bytes_max,
            calls_max: self.concurrency,
        }
    }

    /// Connects, with https as far as the handshake. A request is sent only if `check_method`
    /// names one: an endpoint may take any request for an event.
    async fn check(&self) -> Result<Vec<String>, SinkError> {
        let connected = timeout(self.connect_timeout, self.try_connection()).await;
        connected.unwrap_or_else(|elapsed| Err(response::no_connection(&elapsed, &self.url)))?;
        match &self.check_method {
            Some(method) => self.ask(method).await,
            None => Ok(Vec::new()),
        }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.send(message).await);
        }
        answers
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

impl std::fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpSink")
            .field("origin", &response::origin(&self.url))
            .finish_non_exhaustive()
    }
}
