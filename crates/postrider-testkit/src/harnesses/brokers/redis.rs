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

/// A server with one stream.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("redis", CAPABILITIES, Clock::Real, || async {
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
        CAPABILITIES
    }

    fn encoding(&self) -> Encoding {
        encoding(STREAM)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.proxy.url(&self.url), "").await
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

    async fn kill9(&self) {
        self.server.lock().await.kill9().await;
    }

    async fn start_again(&self) {
        self.server.lock().await.start_again().await;
    }
}
