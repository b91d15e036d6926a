//! NATS with JetStream: a stream in the shared server, or a whole server for a test that breaks
//! it.

mod server;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use async_nats::Client;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::OnceCell;
use uuid::Uuid;

pub use self::server::{Options, Server, Tls};

/// How the names of tests' streams start.
const PREFIX: &str = "test_";
/// No test is that slow.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// How long a stream knows what it has kept: longer than any case takes.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(3600);
/// How often making a stream is tried again.
const MAKING_MAX: usize = 10;
/// How many messages are asked for at a time.
const READS_AT_ONCE: usize = 64;

/// The URL of the shared server.
///
/// # Panics
///
/// If it does not run.
pub fn shared() -> String {
    super::shared("POSTRIDER_TEST_NATS")
}

/// Connects a plain client, without TLS.
pub async fn connect(url: &str) -> Client {
    let options = async_nats::ConnectOptions::new();
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let options = match user.and_then(|(user, _)| user.split_once(':')) {
        Some((user, password)) => options.user_and_password(user.to_owned(), password.to_owned()),
        None => options,
    };
    options.connect(super::address(url)).await.expect("the server can be reached")
}

/// A stream of one test, in the shared server or another one. It is deleted with this.
pub struct Stream {
    /// Its name.
    pub name: String,
    /// What all its subjects begin with, without the last dot.
    pub prefix: String,
    context: Context,
    url: String,
}

impl Stream {
    /// Makes one in the shared server.
    pub async fn fresh() -> Self {
        let url = shared();
        let context = jetstream::new(connect(&url).await);
        static SWEPT: OnceCell<()> = OnceCell::const_new();
        SWEPT.get_or_init(|| sweep(&context)).await;
        Self::fresh_at(&url).await
    }

    /// Makes one in any server, under a new name and for subjects of its own.
    pub async fn fresh_at(url: &str) -> Self {
        let context = jetstream::new(connect(url).await);
        let id = Uuid::now_v7().simple();
        let (name, prefix) = (format!("{PREFIX}{id}"), format!("test.{id}"));
        let config = Config {
            name: name.clone(),
            subjects: vec![format!("{prefix}.>")],
            duplicate_window: DUPLICATE_WINDOW,
            ..Config::default()
        };
        let mut made = context.create_stream(&config).await;
        // With its last stream a server removes the folder of all, even while one is being made.
        for _ in 0..MAKING_MAX {
            if made.is_ok() {
                break;
            }
            made = context.create_stream(&config).await;
        }
        made.expect("a stream can be made");
        Self { name, prefix, context, url: url.to_owned() }
    }

    /// A subject that it takes.
    pub fn subject(&self, last: &str) -> String {
        format!("{}.{last}", self.prefix)
    }

    /// Everything that it keeps, in its order.
    pub async fn read(&self) -> Vec<Read> {
        read(&self.context, &self.name).await
    }

    /// A client that can do everything with it.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (url, name) = (std::mem::take(&mut self.url), std::mem::take(&mut self.name));
        // Nobody waits for it; what stays is swept up later.
        drop(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                let options = async_nats::ConnectOptions::new();
                let options = options.user_and_password("postrider".into(), "postrider".into());
                let Ok(client) = options.connect(super::address(&url)).await else { return };
                let _ = jetstream::new(client).delete_stream(name).await;
            });
        }));
    }
}

/// Deletes the streams that killed tests have left. Their names say how old they are.
async fn sweep(context: &Context) {
    let names: Vec<_> = context.stream_names().try_collect().await.unwrap_or_default();
    for name in names {
        let id = name.strip_prefix(PREFIX).and_then(|id| Uuid::parse_str(id).ok());
        let Some(made_at) = id.and_then(|id| id.get_timestamp()) else { continue };
        let made_at = UNIX_EPOCH + Duration::from_secs(made_at.to_unix().0);
        if made_at.elapsed().is_ok_and(|age| age > LEFT_AFTER) {
            // Another process may sweep, too.
            let _ = context.delete_stream(name).await;
        }
    }
}

/// A message that a stream keeps.
#[derive(Clone, Debug)]
pub struct Read {
    /// Its subject.
    pub subject: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Everything that a stream keeps, in its order.
pub async fn read(context: &Context, stream: &str) -> Vec<Read> {
    let stream = context.get_stream(stream).await.expect("there is the stream");
    let state = &stream.cached_info().state;
    let reads = (state.first_sequence.max(1)..=state.last_sequence).map(|sequence| {
        let stream = &stream;
        async move {
            let message = stream.get_raw_message(sequence).await.expect("it can be read");
            let text =
                |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
                    (name.to_string(), values.first().map(ToString::to_string).unwrap_or_default())
                };
            Read {
                subject: message.subject.to_string(),
                headers: message.headers.iter().map(text).collect(),
                payload: message.payload.to_vec(),
            }
        }
    });
    futures_util::stream::iter(reads).buffered(READS_AT_ONCE).collect().await
}
