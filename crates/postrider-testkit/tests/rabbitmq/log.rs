//! G-11: nothing of an event reaches the log, whatever the client library would like to write.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use postrider_relay::sink::FailureKind::Failed;
use postrider_testkit::servers::rabbitmq::{Exchange, shared};
use postrider_testkit::suites::numbered::building;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::{assert_error, connect, message, message_of, publish};

/// Collects all that is logged above the level `DEBUG`, by anybody.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut log = self.0.lock().unwrap();
        write!(log, "{} ", event.metadata().target()).unwrap();
        event.record(&mut Line(&mut log));
        log.push('\n');
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn what_comes_back_is_not_logged() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    tracing::info!("it is heard");
    let sink = connect(&shared(), "").await;
    let exchange = Exchange::fresh().await;
    assert_eq!(publish(&*sink, message(&exchange.name, "a", 1)).await, Ok(()));
    let secret = "canary-canary-canary";
    let event = building("b", 2).payload(secret, "text/plain").header("x", secret).build().unwrap();
    let answer = publish(&*sink, message_of(event, "amq.fanout")).await;
    assert_error(answer, Failed, &["no queue takes the routing key b"]);
    let log = log.0.lock().unwrap();
    assert!(log.contains("it is heard"), "{log}");
    // As text, or as the bytes of it.
    for text in [secret, "99, 97, 110, 97, 114, 121"] {
        assert!(!log.contains(text), "{log}");
    }
}
