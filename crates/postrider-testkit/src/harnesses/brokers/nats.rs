//! A server of NATS.

use std::sync::Arc;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{Sink, SinkError};
use tokio::sync::Mutex;

use crate::harnesses::sinks::nats::{CAPABILITIES, arrival, connect, encoding};
use crate::proxy::Proxy;
use crate::servers::nats::{Options, Server, Stream};
use crate::suites::broker::{Subject, TestBroker, behave_by_proxy};
use crate::suites::sink::{Arrival, Behaviour, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// A server with one stream.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("nats", CAPABILITIES, Clock::Real, || async {
        let server = Server::start(Options::default()).await;
        let stream = Stream::fresh_at(&server.url()).await;
        let proxy = Proxy::start(&server.address()).await;
        let url = proxy.url(&server.url());
        Arc::new(Nats { server: Mutex::new(server), proxy, stream, url }) as Subject
    })
}

struct Nats {
    server: Mutex<Server>,
    proxy: Proxy,
    stream: Stream,
    /// By way of the proxy.
    url: String,
}

#[async_trait]
impl TestTarget for Nats {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.stream)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.url, &self.stream).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.stream.read().await.into_iter().map(arrival).collect()
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

#[async_trait]
impl TestBroker for Nats {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    async fn configured(&self) -> (String, String) {
        let (name, topic) = (&self.stream.name, self.stream.subject("{aggregate_type}"));
        let options = format!("topic = \"{topic}\"\nstream = \"{name}\"");
        (self.server.lock().await.url(), options)
    }

    async fn kill9(&self) {
        self.server.lock().await.kill9().await;
    }

    async fn start_again(&self) {
        self.server.lock().await.start_again().await;
    }
}
