//! NATS JetStream.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use postrider::Event;
use postrider_consumer::subscriptions::Nats;
use postrider_consumer::{Redelivery, Subscription as _};
use uuid::Uuid;

use super::{event, exercise, handles, headers, mistake, receive, receives_nothing, told};
use crate::proxy::Proxy;

const VISIBILITY: Duration = Duration::from_secs(2);

/// A stream of its own, which is removed in the end.
struct Stream {
    context: Context,
    name: String,
}

/// The server's `host:port`, and a context by way of an address.
fn server() -> String {
    let url = std::env::var("POSTRIDER_TEST_NATS").unwrap();
    url.rsplit_once('@').unwrap().1.to_owned()
}

async fn context(address: &str) -> Context {
    let options =
        ConnectOptions::with_user_and_password("postrider".to_owned(), "postrider".to_owned());
    jetstream::new(options.connect(address).await.unwrap())
}

impl Stream {
    async fn make() -> Self {
        let context = context(&server()).await;
        let name = format!("S{}", Uuid::now_v7().simple());
        let config = jetstream::stream::Config {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            max_age: Duration::from_secs(600),
            ..Default::default()
        };
        context.create_stream(config).await.unwrap();
        Self { context, name }
    }

    async fn publish(&self, event: &Event) {
        let mut map = HeaderMap::new();
        for (name, value) in headers(event) {
            map.insert(name, value);
        }
        let (subject, body) = (format!("{}.paid", self.name), event.payload().clone());
        let sent = self.context.publish_with_headers(subject, map, body).await.unwrap();
        sent.await.unwrap();
    }

    async fn remove(self) {
        self.context.delete_stream(&self.name).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_acknowledged_comes_again() {
    let stream = Stream::make().await;
    let subscribe = async |_: &str| {
        Nats::subscribe(stream.context.clone(), &stream.name, "billing").ack_wait(VISIBILITY)
    };
    exercise(async |event: &Event| stream.publish(event).await, subscribe, Some(VISIBILITY)).await;
    stream.remove().await;
}

#[tokio::test]
async fn the_streams_settings_are_found_and_a_consumer_that_is_there_keeps_its_own() {
    let stream = Stream::make().await;
    let subscribe = |wait| {
        Nats::subscribe(stream.context.clone(), &stream.name, "billing")
            .ack_wait(Duration::from_secs(wait))
    };
    let window = subscribe(7).redelivery().await.unwrap();
    assert_eq!(window, Redelivery::Within(Duration::from_secs(600)));
    let later = subscribe(9);
    later.redelivery().await.unwrap();
    assert_eq!(later.visibility(), Some(Duration::from_secs(7)));
    stream.remove().await;
}

#[tokio::test]
async fn a_stream_that_is_missing_and_a_consumer_that_does_not_fit_are_mistakes() {
    let stream = Stream::make().await;
    let missing = Nats::subscribe(stream.context.clone(), "NOSUCHSTREAM", "billing");
    let message = mistake(&missing).await.message;
    assert!(message.contains("make it: nats stream add NOSUCHSTREAM"), "{message}");
    let config = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::None,
        ..Default::default()
    };
    let found = stream.context.get_stream(&stream.name).await.unwrap();
    found.create_consumer(config).await.unwrap();
    let unfit = Nats::subscribe(stream.context.clone(), &stream.name, "billing");
    let message = mistake(&unfit).await.message;
    assert!(message.contains("ack policy is not explicit"), "{message}");
    stream.remove().await;
}

#[tokio::test]
async fn only_the_subjects_that_are_named_come() {
    let stream = Stream::make().await;
    let other = format!("{}.other", stream.name);
    let nats = Nats::subscribe(stream.context.clone(), &stream.name, "billing");
    let nats = nats.filter_subjects(&[&other]);
    stream.publish(&event("a", 1)).await;
    receives_nothing(&nats, Duration::from_millis(500)).await;
    let found = stream.context.get_stream(&stream.name).await.unwrap();
    let config = &found.consumer_info("billing").await.unwrap().config;
    assert_eq!(config.filter_subject, other);
    nats.close().await;
    stream.remove().await;
}

#[tokio::test]
async fn a_consumer_that_was_removed_and_a_connection_that_was_cut_are_survived() {
    let stream = Stream::make().await;
    let proxy = Proxy::to(&server()).await;
    let near = context(&format!("127.0.0.1:{}", proxy.port)).await;
    let nats = Nats::subscribe(near, &stream.name, "billing").ack_wait(VISIBILITY);
    stream.publish(&event("a", 1)).await;
    let received = receive(&nats, 1).await;
    nats.acknowledge(handles::<Nats>(&received)).await.unwrap();
    proxy.cut();
    stream.publish(&event("a", 2)).await;
    let received = receive(&nats, 1).await;
    assert_eq!(told(&received), "a2");
    nats.acknowledge(handles::<Nats>(&received)).await.unwrap();
    let found = stream.context.get_stream(&stream.name).await.unwrap();
    found.delete_consumer("billing").await.unwrap();
    let again = receive(&nats, 2).await;
    assert_eq!(told(&again), "a1 a2", "the new one knows nothing of the other");
    nats.close().await;
    stream.remove().await;
}
