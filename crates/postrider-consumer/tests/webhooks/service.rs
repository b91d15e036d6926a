//! A service that consumes by HTTP, and those who send to it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use postrider::{Event, EventBuilder, EventType};
use postrider_consumer::webhooks::{Verifier, Webhooks};
use postrider_consumer::{Consumer, Metrics, Rejected};
use postrider_relay::formats::{Encoding, Format};
use postrider_relay::sink::{Sink, SinkError};
use postrider_relay::sinks::SinkSpec;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const OTHER_SECRET: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

#[derive(serde::Deserialize)]
pub(crate) struct OrderPaid {
    cents: i64,
}

impl EventType for OrderPaid {
    const EVENT_TYPE: &'static str = "OrderPaid";
}

pub(crate) fn order_paid() -> EventBuilder {
    Event::builder("Order", "Z\u{fc}rich 100%", "OrderPaid")
        .payload("{\"cents\":999}", "application/json")
}

/// What the handler does after it has written.
pub(crate) enum Then {
    Fail,
    Panic,
    Reject,
    /// Says that it was reached, and waits.
    Wait(oneshot::Sender<()>, oneshot::Receiver<()>),
}

/// A billing service, with a database of its own.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) pool: SqlitePool,
    pub(crate) metrics: Arc<Metrics>,
    /// What the handler does with the next events; it succeeds with those after them.
    pub(crate) then: Arc<Mutex<VecDeque<Then>>>,
    /// What the handler was given.
    pub(crate) seen: Arc<Mutex<Vec<Event>>>,
    _folder: TempDir,
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[SECRET], |consumer| consumer).await
    }

    pub(crate) async fn start_with(
        secrets: &[&str],
        set: impl FnOnce(Consumer<SqlitePool, Webhooks>) -> Consumer<SqlitePool, Webhooks>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("billing.db"));
        let pool = SqlitePool::connect_with(options.create_if_missing(true)).await.unwrap();
        let tables = postrider::schema::sqlite::sql(&Default::default());
        let tables = tables + "CREATE TABLE revenue (cents INTEGER NOT NULL);";
        sqlx::raw_sql(sqlx::AssertSqlSafe(tables)).execute(&pool).await.unwrap();
        let (then, seen) = (Arc::<Mutex<VecDeque<Then>>>::default(), Arc::default());
        let webhooks = Webhooks::new(Verifier::new(secrets).unwrap());
        let consumer = Consumer::new("billing", pool.clone(), webhooks);
        let consumer = set(consumer.on::<OrderPaid>({
            let (then, seen) = (Arc::clone(&then), Arc::<Mutex<Vec<Event>>>::clone(&seen));
            move |tx, paid| {
                let next = then.lock().unwrap().pop_front();
                seen.lock().unwrap().push(paid.event.clone());
                Box::pin(async move {
                    let revenue = sqlx::query("INSERT INTO revenue VALUES (?1)").bind(paid.cents);
                    revenue.execute(&mut **tx).await?;
                    match next {
                        Some(Then::Fail) => Err("canary: the tax office is closed".into()),
                        Some(Then::Panic) => panic!("canary"),
                        Some(Then::Reject) => Err(Rejected("no such order".into()).into()),
                        Some(Then::Wait(reached, go_on)) => {
                            reached.send(()).unwrap();
                            Ok(go_on.await?)
                        }
                        None => Ok(()),
                    }
                })
            }
        }));
        let metrics = consumer.metrics();
        let address = serve(Router::new().route("/", consumer.into_route().unwrap())).await;
        Self { address, pool, metrics, then, seen, _folder: folder }
    }

    pub(crate) fn then(&self, then: Then) {
        self.then.lock().unwrap().push_back(then);
    }

    /// The rows of the effect, the claims and the dead letters.
    pub(crate) async fn rows(&self) -> [i64; 3] {
        let count = |sql| async move {
            let count = sqlx::query_scalar(sql).fetch_one(&self.pool).await;
            count.unwrap()
        };
        [
            count("SELECT count(*) FROM revenue").await,
            count("SELECT count(*) FROM inbox").await,
            count("SELECT count(*) FROM inbox_messages WHERE dead").await,
        ]
    }

    /// Sends by the relay's own sink.
    pub(crate) async fn publish(&self, event: &Event) -> Result<(), SinkError> {
        self.publish_by(event, Format::Payload, &[SECRET]).await
    }

    pub(crate) async fn publish_by(
        &self,
        event: &Event,
        format: Format,
        secrets: &[&str],
    ) -> Result<(), SinkError> {
        let encoding = Encoding { format, ..Encoding::default() };
        let message = encoding.encode(Arc::new(event.clone())).unwrap();
        let options = format!("allow_private = true\nsigning_secrets = {secrets:?}");
        let spec = SinkSpec {
            options: options.parse().unwrap(),
            ..SinkSpec::new(format!("http://{}/", self.address))
        };
        let sink: Box<dyn Sink> = spec.connect().await.unwrap();
        sink.publish(&[message]).await.remove(0)
    }
}

/// Serves on a port of its own, as long as the test runs.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A request that is put together by hand.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

/// The answer to one.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) text: String,
}

impl Request {
    /// As the relay sends it, in the format `payload`.
    pub(crate) fn new(event: &Event) -> Self {
        let body = String::from_utf8(event.payload().to_vec()).unwrap();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut request = Self { headers: Vec::new(), body };
        request.set("content-type", "application/json");
        request.set("postrider-event-type", event.event_type());
        request.set("postrider-event-version", event.event_version());
        request.set("postrider-id", event.id());
        request.set("webhook-id", event.id());
        request.set("webhook-timestamp", since_1970.as_secs());
        request.sign();
        request
    }

    pub(crate) fn get(&self, name: &str) -> String {
        self.headers.iter().find(|(own, _)| *own == name).unwrap().1.clone()
    }

    pub(crate) fn set(&mut self, name: &'static str, value: impl ToString) {
        self.remove(name);
        self.headers.push((name, value.to_string()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| *own != name);
    }

    pub(crate) fn send_at(&mut self, seconds: i64) {
        self.set("webhook-timestamp", seconds);
        self.sign();
    }

    pub(crate) fn sign(&mut self) {
        let signed =
            format!("{}.{}.{}", self.get("webhook-id"), self.get("webhook-timestamp"), self.body);
        let key = BASE64.decode(&SECRET["whsec_".len()..]).unwrap();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
        mac.update(signed.as_bytes());
        let signature = format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()));
        self.set("webhook-signature", signature);
    }

    pub(crate) async fn send(&self, address: SocketAddr) -> Answer {
        let request = reqwest::Client::new().post(format!("http://{address}/"));
        let request = self
            .headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, value.as_bytes()));
        let answer = request.body(self.body.clone()).send().await.unwrap();
        let retry_after = answer.headers().get("retry-after");
        Answer {
            status: answer.status().as_u16(),
            retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
            text: answer.text().await.unwrap(),
        }
    }
}
