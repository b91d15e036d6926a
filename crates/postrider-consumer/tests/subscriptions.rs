//! Subscriptions against real servers, without the runtime: what is delivered, and when it comes
//! again.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

#[path = "subscriptions/nats.rs"]
mod nats;
#[path = "subscriptions/proxy.rs"]
mod proxy;
#[path = "subscriptions/rabbitmq.rs"]
mod rabbitmq;
#[path = "subscriptions/redis.rs"]
mod redis;
#[path = "subscriptions/stored.rs"]
mod stored;

use std::time::{Duration, Instant};

use postrider::Event;
use postrider_consumer::decoding::decode;
use postrider_consumer::{Received, Subscription, SubscriptionError};
use tokio::time::timeout;

/// How long something may take to come.
const DEADLINE: Duration = Duration::from_secs(30);
/// For how long nothing comes that does not come at all.
const SILENCE: Duration = Duration::from_millis(500);

/// The event of a key that has this number.
fn event(key: &str, number: u32) -> Event {
    let event = Event::builder("Order", key, "OrderPaid").header("tenant", "acme");
    event.json(&number).build().unwrap()
}

/// The headers that the relay would send.
fn headers(event: &Event) -> Vec<(String, String)> {
    let own = [
        ("postrider-id", event.id().to_string()),
        ("postrider-aggregate-type", event.aggregate_type().to_owned()),
        ("postrider-aggregate-id", event.aggregate_id().to_owned()),
        ("postrider-event-type", event.event_type().to_owned()),
        ("postrider-event-version", event.event_version().to_string()),
        ("postrider-occurred-at", postrider::timestamp::to_text(event.occurred_at())),
        ("content-type", event.content_type().to_owned()),
    ];
    let others = event.headers().iter().map(|(name, value)| (name.clone(), value.clone()));
    own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(others).collect()
}

/// Receives until there are so many, whatever fails on the way.
async fn receive<S: Subscription>(subscription: &S, count: usize) -> Vec<Received<S::Handle>> {
    let mut received = Vec::new();
    let until = Instant::now() + DEADLINE;
    while received.len() < count {
        let waiting = subscription.receive(count - received.len());
        let left = until.saturating_duration_since(Instant::now());
        match timeout(left, waiting).await.expect("it comes in time") {
            Ok(more) => received.extend(more),
            Err(error) if error.is_final => panic!("{error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    assert_eq!(received.len(), count);
    received
}

async fn receives_nothing<S: Subscription>(subscription: &S, during: Duration) {
    match timeout(during, subscription.receive(100)).await {
        Err(_) => {}
        Ok(Ok(received)) => panic!("received {}", told(&received)),
        Ok(Err(error)) => panic!("{error:?}"),
    }
}

fn handles<S: Subscription>(received: &[Received<S::Handle>]) -> Vec<S::Handle> {
    received.iter().map(|one| one.handle.clone()).collect()
}

/// Keys and numbers, in order.
fn told<H>(received: &[Received<H>]) -> String {
    let told = received.iter().map(|one| {
        let event = decode(&one.incoming).unwrap();
        format!("{}{}", event.aggregate_id(), String::from_utf8_lossy(event.payload()))
    });
    told.collect::<Vec<_>>().join(" ")
}

async fn mistake<S: Subscription>(subscription: &S) -> SubscriptionError {
    let Err(error) = timeout(DEADLINE, subscription.receive(1)).await.unwrap() else {
        panic!("it received something");
    };
    assert!(error.is_final, "{error:?}");
    error
}

/// What all subscriptions have in common. `subscribe` makes one of the same group, and `visibility`
/// is what it has, if it has any.
async fn exercise<S: Subscription>(
    publish: impl AsyncFn(&Event),
    subscribe: impl AsyncFn(&str) -> S,
    visibility: Option<Duration>,
) {
    let first = subscribe("first").await;
    let mut events = Vec::new();
    for number in 1..=3 {
        events.extend([event("a", number), event("b", number)]);
    }
    for event in &events {
        publish(event).await;
    }
    let received = receive(&first, 6).await;
    let of = |key| {
        let told = told(&received);
        told.split(' ').filter(|one| one.starts_with(key)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((of("a"), of("b")), ("a1 a2 a3".to_owned(), "b1 b2 b3".to_owned()));
    for one in &received {
        let decoded = decode(&one.incoming).unwrap();
        let sent = events.iter().find(|event| event.id() == decoded.id()).unwrap();
        assert_eq!(decoded.headers(), sent.headers());
        assert_eq!(decoded.content_type(), sent.content_type());
        assert_eq!(postrider::timestamp::to_text(decoded.occurred_at()), {
            postrider::timestamp::to_text(sent.occurred_at())
        });
    }

    // What is not acknowledged comes again, and nothing else does.
    let a: Vec<_> =
        received.into_iter().partition(|one| told(std::slice::from_ref(one)).starts_with('a')).0;
    let mut left = handles::<S>(&a);
    let done = left.split_off(1);
    first.acknowledge(done).await.unwrap();
    if let Some(visibility) = visibility {
        // `b` is left to its time, `a1` is kept beyond it.
        let second = subscribe("second").await;
        let until = Instant::now() + visibility * 3;
        let mut again = Vec::new();
        while Instant::now() < until {
            first.extend(&left).await.unwrap();
            second.extend(&handles::<S>(&again)).await.unwrap();
            if let Ok(more) = timeout(visibility / 4, second.receive(10)).await {
                again.extend(more.unwrap());
            }
        }
        assert_eq!(told(&again), "b1 b2 b3");
        second.acknowledge(handles::<S>(&again)).await.unwrap();
        first.release(left).await.unwrap();
        let again = receive(&second, 1).await;
        assert_eq!(told(&again), "a1");
        second.acknowledge(handles::<S>(&again)).await.unwrap();
        receives_nothing(&second, visibility * 2).await;
        second.close().await;
    } else {
        first.release(left).await.unwrap();
        first.close().await;
        let second = subscribe("second").await;
        let again = receive(&second, 4).await;
        second.acknowledge(handles::<S>(&again)).await.unwrap();
        let mut told: Vec<_> = told(&again).split(' ').map(str::to_owned).collect();
        told.sort();
        assert_eq!(told, ["a1", "b1", "b2", "b3"]);
        receives_nothing(&second, SILENCE).await;
        second.close().await;
    }
    first.close().await;
}
