//! Consumers by HTTP: a real server, the relay's own sink, and a database on disk.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

#[path = "webhooks/service.rs"]
mod service;
#[path = "webhooks/starvation.rs"]
mod starvation;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use futures_util::future::join_all;
use postrider::Event;
use postrider_consumer::webhooks::{BODY_BYTES_MAX, Refusal, Verifier, Webhook, Webhooks};
use postrider_consumer::{Consumer, Unhandled};
use postrider_relay::formats::Format;
use postrider_relay::sink::FailureKind;
use sqlx::SqlitePool;
use tokio::sync::oneshot;

use self::service::{OTHER_SECRET, Request, SECRET, Service, Then, order_paid, serve};

#[tokio::test]
async fn an_event_that_is_delivered_three_times_has_its_effect_once() {
    let service = Service::start().await;
    let event = order_paid().build().unwrap();
    for _ in 0..3 {
        service.publish(&event).await.unwrap();
    }
    assert_eq!(service.rows().await, [1, 1, 0]);
    let counts = service.metrics.counts();
    assert_eq!((counts.received, counts.handled, counts.duplicates), (3, 1, 2));
    assert_eq!(counts.in_flight, 0);
    service.publish(&order_paid().build().unwrap()).await.unwrap();
    assert_eq!(service.rows().await, [2, 2, 0]);
}

#[tokio::test]
async fn deliveries_at_once_have_their_effect_once() {
    let service = Service::start().await;
    let event = order_paid().build().unwrap();
    for delivered in join_all((0..8).map(|_| service.publish(&event))).await {
        delivered.unwrap();
    }
    assert_eq!(service.rows().await, [1, 1, 0]);
    assert_eq!(service.metrics.counts().duplicates, 7);
}

#[tokio::test]
async fn all_formats_arrive() {
    let service = Service::start().await;
    for format in Format::ALL {
        let event = order_paid().header("tenant", "\u{fc}").build().unwrap();
        service.publish_by(&event, format, &[SECRET]).await.unwrap();
        let arrived = service.seen.lock().unwrap().pop().expect("it was handled");
        assert_eq!((arrived.id(), arrived.payload()), (event.id(), event.payload()), "{format:?}");
        assert_eq!((arrived.event_type(), arrived.event_version()), ("OrderPaid", 1));
        assert_eq!(
            (arrived.content_type(), arrived.headers()),
            ("application/json", event.headers())
        );
        // Debezium's router has the key in the broker's, which HTTP has not.
        if format != Format::Debezium {
            assert_eq!(arrived.key(), event.key(), "{format:?}");
            assert_eq!(arrived.occurred_at(), event.occurred_at(), "{format:?}");
        }
    }
    assert_eq!(service.rows().await, [4, 4, 0]);
}

type Change<'c> = &'c dyn Fn(&mut Request);

#[tokio::test]
async fn what_is_not_genuine_is_turned_away() {
    let service = Service::start().await;
    let event = order_paid().build().unwrap();
    for secrets in [&[OTHER_SECRET][..], &[]] {
        let error = service.publish_by(&event, Format::Payload, secrets).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Refused, "{error}");
    }
    let genuine = Request::new(&event);
    let sent: i64 = genuine.get("webhook-timestamp").parse().unwrap();
    let changes: [(Change<'_>, &str); 9] = [
        (&|request| request.body = "{\"cents\":1000}".into(), "no signature"),
        (&|request| request.set("webhook-id", uuid::Uuid::now_v7()), "no signature"),
        (&|request| request.set("webhook-timestamp", sent - 1), "no signature"),
        (&|request| request.set("webhook-signature", "v1,AAAA v2,***"), "no signature"),
        (&|request| request.remove("webhook-id"), "webhook-id is missing"),
        (&|request| request.remove("webhook-timestamp"), "webhook-timestamp is missing"),
        (&|request| request.remove("webhook-signature"), "webhook-signature is missing"),
        (&|request| request.send_at(sent - 400), "webhook-timestamp is too old"),
        (&|request| request.send_at(sent + 400), "webhook-timestamp is in the future"),
    ];
    for (change, expected) in changes {
        let mut request = genuine.clone();
        change(&mut request);
        let answer = request.send(service.address).await;
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(answer.text.contains(expected), "{expected}: {answer:?}");
        assert!(!answer.text.contains(&SECRET[6..]), "{answer:?}");
    }
    assert_eq!(service.rows().await, [0, 0, 0]);
    assert_eq!(genuine.send(service.address).await.status, 204);
    assert_eq!(service.rows().await, [1, 1, 0]);
}

#[tokio::test]
async fn secrets_are_exchanged_without_a_break() {
    let both = Service::start_with(&[SECRET, OTHER_SECRET], |consumer| consumer).await;
    let new = Service::start_with(&[OTHER_SECRET], |consumer| consumer).await;
    let event = order_paid().build().unwrap();
    for (service, signed_by) in [
        (&both, &[SECRET][..]),
        (&both, &[OTHER_SECRET]),
        (&new, &[SECRET, OTHER_SECRET]),
        (&new, &[OTHER_SECRET]),
    ] {
        service.publish_by(&event, Format::Payload, signed_by).await.unwrap();
    }
    new.publish(&event).await.unwrap_err();
}

#[tokio::test]
async fn an_id_that_nobody_signed_does_not_count() {
    let service = Service::start().await;
    let other = uuid::Uuid::now_v7();
    let body = format!("{{\"cents\":1,\"id\":\"{other}\",\"type\":\"OrderPaid\"}}");
    let event = order_paid().payload(body, "application/json").build().unwrap();
    let mut again = Request::new(&event);
    assert_eq!(again.send(service.address).await.status, 204);
    for name in ["postrider-id", "ce-id", "id", "message-id"] {
        again.set(name, other);
        assert_eq!(again.send(service.address).await.status, 204);
    }
    assert_eq!(service.rows().await, [1, 1, 0]);
    again.set("content-type", "application/cloudevents+json");
    let answer = again.send(service.address).await;
    assert_eq!(answer.status, 401);
    assert!(answer.text.contains("another id than webhook-id"), "{answer:?}");
    // The relay's are enough, without an id of a format.
    let mut request = Request::new(&order_paid().build().unwrap());
    request.remove("postrider-id");
    assert_eq!(request.send(service.address).await.status, 204);
    assert_eq!(service.rows().await, [2, 2, 0]);
}

#[tokio::test]
async fn what_is_no_event_is_not_accepted() {
    let service = Service::start().await;
    let mut request = Request::new(&order_paid().build().unwrap());
    let mut untyped = request.clone();
    untyped.remove("postrider-event-type");
    let answer = untyped.send(service.address).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("names no event type"), "{answer:?}");
    request.set("webhook-id", "msg_1");
    request.sign();
    let answer = request.send(service.address).await;
    assert_eq!((answer.status, answer.text.contains("no UUID")), (400, true), "{answer:?}");
    request.body = "x".repeat(BODY_BYTES_MAX + 1);
    request.sign();
    assert_eq!(request.send(service.address).await.status, 413);
    let get = reqwest::get(format!("http://{}/", service.address)).await.unwrap();
    assert_eq!(get.status().as_u16(), 405);
    assert_eq!(service.rows().await, [0, 0, 0]);
}

#[tokio::test]
async fn a_handler_that_fails_leaves_nothing_and_succeeds_with_the_next_delivery() {
    let service = Service::start().await;
    let event = order_paid().build().unwrap();
    for then in [Then::Fail, Then::Panic] {
        service.then(then);
        let answer = Request::new(&event).send(service.address).await;
        assert_eq!((answer.status, answer.retry_after.as_deref()), (500, Some("2")));
        assert!(!answer.text.contains("canary"), "{answer:?}");
        assert_eq!(service.rows().await, [0, 0, 0]);
    }
    service.then(Then::Fail);
    assert_eq!(service.publish(&event).await.unwrap_err().kind, FailureKind::Failed);
    service.publish(&event).await.unwrap();
    assert_eq!(service.rows().await, [1, 1, 0]);
    assert_eq!(service.metrics.counts().retries, 3);
}

#[tokio::test]
async fn what_no_retry_would_mend_is_a_dead_letter_and_accepted() {
    let service = Service::start().await;
    let events: [Event; 3] = [
        order_paid().build().unwrap(),
        order_paid().version(7).build().unwrap(),
        order_paid().payload("\"cents\"", "application/json").build().unwrap(),
    ];
    service.then(Then::Reject);
    for event in &events {
        service.publish(event).await.unwrap();
    }
    assert_eq!(service.rows().await, [0, 3, 3]);
    let errors = "SELECT error FROM inbox_messages ORDER BY position";
    let errors: Vec<String> = sqlx::query_scalar(errors).fetch_all(&service.pool).await.unwrap();
    assert_eq!(errors[..2], ["no such order", "no handler for OrderPaid of version 7, only for 1"]);
    assert!(errors[2].starts_with("the payload is no OrderPaid of version 1"), "{errors:?}");
    // Somebody looks after them: a redelivery is handled by nobody.
    for event in &events {
        service.publish(event).await.unwrap();
    }
    assert_eq!(service.rows().await, [0, 3, 3]);
    assert_eq!(service.metrics.counts().buried, 3);
}

#[tokio::test]
async fn what_nobody_handles_is_accepted() {
    let service = Service::start().await;
    let event = Event::builder("Order", "1", "OrderSeen").build().unwrap();
    service.publish(&event).await.unwrap();
    assert_eq!(service.rows().await, [0, 0, 0]);
    assert_eq!(service.metrics.counts().skipped, 1);
    let strict = |consumer: Consumer<_, _>| consumer.on_unknown_type(Unhandled::Bury);
    let service = Service::start_with(&[SECRET], strict).await;
    service.publish(&event).await.unwrap();
    assert_eq!(service.rows().await, [0, 1, 1]);
}

#[tokio::test]
async fn without_its_database_it_asks_for_patience() {
    let service = Service::start().await;
    service.pool.close().await;
    let error = service.publish(&order_paid().build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Throttled, "{error}");
    assert_eq!(error.retry_after, Some(Duration::from_secs(2)));
}

#[tokio::test]
async fn more_requests_than_fit_are_put_off() {
    let service = Service::start_with(&[SECRET], |consumer| consumer.window(1)).await;
    let ((reached, is_reached), (go_on, goes_on)) = (oneshot::channel(), oneshot::channel());
    service.then(Then::Wait(reached, goes_on));
    let (first, second) = (order_paid().build().unwrap(), order_paid().build().unwrap());
    let (first, ()) = tokio::join!(service.publish(&first), async {
        is_reached.await.unwrap();
        let error = service.publish(&second).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Throttled, "{error}");
        go_on.send(()).unwrap();
    });
    first.unwrap();
    service.publish(&second).await.unwrap();
    assert_eq!(service.rows().await, [2, 2, 0]);
}

#[tokio::test]
async fn old_claims_are_removed_in_passing() {
    let service = Service::start().await;
    let old = "INSERT INTO inbox (consumer, event_id, processed_at) \
               VALUES ('billing', 'old', '2000-01-01T00:00:00.000000Z')";
    sqlx::query(old).execute(&service.pool).await.unwrap();
    service.publish(&order_paid().build().unwrap()).await.unwrap();
    assert_eq!(service.rows().await, [1, 1, 0]);
}

#[tokio::test]
async fn the_extractor_is_for_those_who_do_the_rest_themselves() {
    #[derive(Clone)]
    struct App(Verifier, Arc<Mutex<Vec<Event>>>);

    impl axum::extract::FromRef<App> for Verifier {
        fn from_ref(app: &App) -> Self {
            app.0.clone()
        }
    }

    async fn receive(State(app): State<App>, webhook: Webhook) -> Result<StatusCode, Refusal> {
        app.1.lock().unwrap().push(webhook.event()?);
        Ok(StatusCode::ACCEPTED)
    }

    let app = App(Verifier::new([SECRET]).unwrap().body_bytes_max(100), Arc::default());
    let address = serve(Router::new().route("/", post(receive)).with_state(app.clone())).await;
    let event = order_paid().build().unwrap();
    let mut request = Request::new(&event);
    assert_eq!(request.send(address).await.status, 202);
    assert_eq!(app.1.lock().unwrap().remove(0).id(), event.id());
    request.body = " ".repeat(101);
    assert_eq!(request.send(address).await.status, 413);
    request.set("webhook-signature", "v1,AAAA");
    request.body.truncate(100);
    assert_eq!(request.send(address).await.status, 401);
}

#[tokio::test]
async fn a_consumer_without_handlers_is_a_mistake() {
    let webhooks = Webhooks::new(Verifier::new([SECRET]).unwrap());
    let pool = SqlitePool::connect_lazy("sqlite::memory:").unwrap();
    let route = Consumer::new("billing", pool, webhooks).into_route::<()>();
    assert!(route.err().unwrap().to_string().contains("has no handlers"));
}

/// Whatever a request says, it is verified or refused.
#[test]
fn no_request_makes_the_verifier_panic() {
    let verifier = Verifier::new([SECRET]).unwrap();
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let samples =
        ["msg_1", "1767323045", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= v1,", ""];
    let mut rng = fastrand::Rng::with_seed(16);
    for _ in 0..20_000 {
        let mut headers = axum::http::HeaderMap::new();
        for name in names {
            let mut value = samples[rng.usize(..samples.len())].as_bytes().to_vec();
            for _ in 0..rng.usize(..4) {
                value.insert(rng.usize(..=value.len()), rng.u8(..));
            }
            value.truncate(rng.usize(..=value.len()));
            if let Ok(value) = axum::http::HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        let body: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
        let now = std::time::UNIX_EPOCH + Duration::from_secs(1_767_323_045);
        assert!(verifier.verify(&headers, &body, now).is_err(), "nobody has signed it");
    }
}
