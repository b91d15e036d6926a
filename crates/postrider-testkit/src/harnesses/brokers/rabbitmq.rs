//! A node of RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{Sink, SinkError};
use tokio::sync::Mutex;

use crate::harnesses::sinks::rabbitmq::{CAPABILITIES, arrival, connect, encoding};
use crate::proxy::Proxy;
use crate::servers::rabbitmq::{Exchange, Options, Server};
use crate::suites::broker::{Subject, TestBroker, behave_by_proxy};
use crate::suites::sink::{Arrival, Behaviour, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// A node with one exchange and one durable queue.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("rabbitmq", CAPABILITIES, Clock::Real, || async {
        let server = Server::start(Options::default()).await;
        let exchange = Exchange::fresh_at(&server.url(), &[]).await;
        let proxy = Proxy::start(&server.address()).await;
        let url = proxy.url(&server.url());
        Arc::new(RabbitMq { server: Mutex::new(server), proxy, exchange, url }) as Subject
    })
}

struct RabbitMq {
    server: Mutex<Server>,
    proxy: Proxy,
    exchange: Exchange,
    /// By way of the proxy.
    url: String,
}

#[async_trait]
impl TestTarget for RabbitMq {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.exchange)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.url, &self.exchange).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.exchange.read().await.into_iter().map(arrival).collect()
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

#[async_trait]
impl TestBroker for RabbitMq {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    async fn configured(&self) -> (String, String) {
        let options = format!("topic = \"{}\"", self.exchange.name);
        (self.server.lock().await.url(), options)
    }

    async fn kill9(&self) {
        self.server.lock().await.kill9().await;
    }

    async fn start_again(&self) {
        self.server.lock().await.start_again().await;
    }
}
