//! Real servers. Those that `cargo xtask services up` runs are shared by all tests, each of which
//! has a database of its own there. A test that stops, crashes or fills a server starts a private
//! one, which is gone with the test.

#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "redis"
))]
pub mod certificates;
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "redis"
))]
mod folder;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;

/// Where the host and port stand in a URL.
fn authority(url: &str) -> std::ops::Range<usize> {
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[start..].find(['/', '?']).map_or(url.len(), |length| start + length);
    let host = url[start..end].rfind('@').map_or(start, |user| start + user + 1);
    host..end
}

/// The `host:port` of a URL.
pub fn address(url: &str) -> &str {
    &url[authority(url)]
}

/// The same URL at another port of this machine. The name `localhost` stays, because it is what
/// a certificate is for.
pub fn at_port(url: &str, port: u16) -> String {
    let authority = authority(url);
    let host =
        if url[authority.clone()].starts_with("localhost") { "localhost" } else { "127.0.0.1" };
    format!("{}{host}:{port}{}", &url[..authority.start], &url[authority.end..])
}

/// The URL of another database of the same server.
pub fn with_database(url: &str, database: &str) -> String {
    let end = authority(url).end;
    let options = url[end..].find('?').map_or("", |options| &url[end + options..]);
    format!("{}/{database}{options}", &url[..end])
}

/// The URL of a shared server, once it is known to be there.
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "redis"
))]
fn shared(variable: &str) -> String {
    let hint = "run `cargo xtask services up`";
    let url = std::env::var(variable);
    let url = url.unwrap_or_else(|_| panic!("{variable} is not set: run tests with cargo"));
    if let Err(error) = std::net::TcpStream::connect(address(&url)) {
        panic!("no server at {}: {error}: {hint}", address(&url));
    }
    url
}

/// A port that nothing listens on. It is none of those that the system gives to connections, so
/// that it is still free when a server comes back.
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "redis"
))]
pub fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).take(1000);
    let mut free = ports.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("there is a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://user:p@ss@localhost:5432/shop?sslmode=require";

    #[test]
    fn parts_of_a_url_are_replaced() {
        assert_eq!(address(URL), "localhost:5432");
        assert_eq!(address("postgres://127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(at_port(URL, 7), "postgres://user:p@ss@localhost:7/shop?sslmode=require");
        assert_eq!(at_port("nats://10.0.0.1:4222", 7), "nats://127.0.0.1:7");
        assert_eq!(
            with_database(URL, "other"),
            "postgres://user:p@ss@localhost:5432/other?sslmode=require"
        );
    }
}
