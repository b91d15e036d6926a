//! A server of Redis.

use std::sync::Arc;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{Sink, SinkError};
use tokio::sync::Mutex;

use crate::harnesses::sinks::redis::{CAPABILITIES, arrival, connect, encoding};
use crate::proxy::Proxy;
use crate::servers::address;
use crate::servers::redis::{Options, Server, read};
use crate::suites::broker::{Subject, TestBroker, behave_by_proxy};
use crate::suites::sink::{Arrival, Behaviour, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const STREAM: &str = "orders";
/// Less than an event can have, so that there are larger ones.
const EVENT_BYTES_MAX: usize = 1_000_000;

/// It is the pipeline that looks at the size, and here there is one.
const WITH_PIPELINE: TargetCapabilities = TargetCapabilities {
    body_bytes_max: EVENT_BYTES_MAX,
    too_large: Some(EVENT_BYTES_MAX + 1),
    ..CAPABILITIES
};

/// A server with one stream.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("redis", WITH_PIPELINE, Clock::Real, || async {
        let server = Server::start(Options::default()).await;
        let url = server.url();
        let proxy = Proxy::start(address(&url)).await;
        Arc::new(Redis { url, server: Mutex::new(server), proxy }) as Subject
    })
}

struct Redis {
    /// Past the proxy.
    url: String,
    server: Mutex<Server>,
    proxy: Proxy,
}

#[async_trait]
impl TestTarget for Redis {
    fn capabilities(&self) -> TargetCapabilities {
        WITH_PIPELINE
    }

    fn encoding(&self) -> Encoding {
        encoding(STREAM)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        let options = format!("event_bytes_max = {EVENT_BYTES_MAX}");
        connect(&self.proxy.url(&self.url), &options).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        let entries = read(&self.url, STREAM).await.into_iter();
        entries.map(|entry| arrival(STREAM, entry)).collect()
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

#[async_trait]
impl TestBroker for Redis {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    async fn configured(&self) -> (String, String) {
        (self.url.clone(), format!("topic = \"{STREAM}\"\ncreate_missing = true"))
    }

    async fn kill9(&self) {
        self.server.lock().await.kill9().await;
    }

    async fn start_again(&self) {
        self.server.lock().await.start_again().await;
    }
}
