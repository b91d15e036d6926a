//! Redis: a stream in the shared server, or a whole server for a test that breaks it.

mod server;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Value, cmd};
use tokio::sync::OnceCell;
use uuid::Uuid;

pub use self::server::{Options, Server, Tls};

/// How the names of tests' streams start.
const PREFIX: &str = "test_";
/// No test is that slow.
const LEFT_AFTER: Duration = Duration::from_secs(3600);

/// The URL of the shared server.
///
/// # Panics
///
/// If it does not run.
pub fn shared() -> String {
    super::shared("POSTRIDER_TEST_REDIS")
}

/// Connects a plain client, without TLS.
pub async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("a URL of Redis");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.expect("the server can be reached")
}

/// Runs a command; its words are separated by spaces.
pub async fn run(url: &str, command: &str) -> RedisResult<Value> {
    let mut words = command.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    command.query_async(&mut connect(url).await).await
}

/// The name of a stream in the shared server, for one test. What is under it is removed with this.
pub struct Stream {
    /// Its name.
    pub name: String,
    url: String,
}

impl Stream {
    /// A name that nothing has.
    pub async fn fresh() -> Self {
        let url = shared();
        static SWEPT: OnceCell<()> = OnceCell::const_new();
        SWEPT.get_or_init(|| sweep(&url)).await;
        Self { name: format!("{PREFIX}{}", Uuid::now_v7().simple()), url }
    }

    /// Everything that it keeps, in its order.
    pub async fn read(&self) -> Vec<Entry> {
        read(&self.url, &self.name).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let keys = keys(&self.name);
        // What stays is swept up later.
        let removed = Client::open(self.url.as_str())
            .and_then(|client| cmd("UNLINK").arg(&keys[..]).exec(&mut client.get_connection()?));
        drop(removed);
    }
}

/// A stream, and the keys of what it remembers.
fn keys(stream: &str) -> [String; 3] {
    let beside = |name: &str| format!("{{{stream}}}:postrider-{name}");
    [stream.to_owned(), beside("ids"), beside("ids-older")]
}

/// Removes the streams that killed tests have left. Their names say how old they are.
async fn sweep(url: &str) {
    let mut connection = connect(url).await;
    let names = cmd("KEYS").arg(format!("{PREFIX}*")).query_async(&mut connection).await;
    let names: Vec<String> = names.expect("keys can be listed");
    for name in names {
        let id = name.strip_prefix(PREFIX).and_then(|id| Uuid::parse_str(id).ok());
        let Some(made_at) = id.and_then(|id| id.get_timestamp()) else { continue };
        let made_at = UNIX_EPOCH + Duration::from_secs(made_at.to_unix().0);
        if made_at.elapsed().is_ok_and(|age| age > LEFT_AFTER) {
            let removed = cmd("UNLINK").arg(&keys(&name)[..]).exec_async(&mut connection).await;
            removed.expect("keys can be removed");
        }
    }
}

/// What a stream keeps.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The fields that are text, by name.
    pub fields: BTreeMap<String, String>,
    /// The field `payload`.
    pub payload: Vec<u8>,
}

/// Everything that a stream keeps, in its order.
pub async fn read(url: &str, stream: &str) -> Vec<Entry> {
    let range = cmd("XRANGE").arg(stream).arg("-").arg("+").to_owned();
    let entries = range.query_async(&mut connect(url).await).await;
    let entries: Vec<(String, Fields)> = entries.expect("a stream can be read");
    entries.into_iter().map(|(_, fields)| entry(fields)).collect()
}

type Fields = Vec<(String, Vec<u8>)>;

fn entry(fields: Fields) -> Entry {
    let mut entry = Entry { fields: BTreeMap::new(), payload: Vec::new() };
    let (names, mut last) = (fields.len(), None);
    for (name, value) in fields {
        last = Some(name.clone());
        if name == "payload" {
            entry.payload = value;
        } else {
            entry.fields.insert(name, String::from_utf8(value).expect("it is text"));
        }
    }
    assert_eq!(last.as_deref(), Some("payload"), "the payload comes last");
    assert_eq!(names, entry.fields.len() + 1, "no field is there twice");
    entry
}
