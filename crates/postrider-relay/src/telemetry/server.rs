//! A small HTTP server with the pages for machines: `/metrics`, `/livez` and `/readyz`.
//!
//! One request for each connection, within a time limit, and a limit on connections: when there
//! are as many, the oldest one ends for the newest, once it has had time to send a request. So
//! nobody who reaches the address can hold anything up. There is nothing to change here, and no
//! payload, key or secret to be seen. See `access.rs` for who is answered.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use self::access::{Access, Refusal};
use super::{Health, Telemetry, page};
use crate::config::HttpConfig;
use crate::shutdown::Shutdown;

mod access;

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// How long each of them has at least: a probe sends its request at once.
const CONNECTION_MIN: Duration = Duration::from_millis(20);
/// Longest time for one connection.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Longest time until a request is there.
const REQUEST_MAX: Duration = Duration::from_secs(2);
/// Longest time for the last ones at the end.
const GRACE: Duration = Duration::from_millis(500);
/// The pause after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that has its address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    access: Access,
}

impl Server {
    /// Takes an address, which has to be one of this host and free. Port 0 is any that is free.
    pub async fn bind(config: &HttpConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        Ok(Self { listener, access: Access::new(config) })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until a stop is asked for, and then what is under way.
    pub async fn serve(self, telemetry: Arc<Telemetry>, mut shutdown: Shutdown) {
        let Self { listener, access } = self;
        let access = Arc::new(access);
        let mut connections = JoinSet::new();
        let mut oldest_first = VecDeque::<(Instant, AbortHandle)>::new();
        loop {
            // While all are young, more wait in the system's queue.
            let may_end = oldest_first.front().map(|(began, _)| *began + CONNECTION_MIN);
            let room = may_end.filter(|_| oldest_first.len() >= CONNECTIONS_MAX);
            let accepted = async {
                if let Some(at) = room {
                    sleep_until(at).await;
                }
                listener.accept().await
            };
            tokio::select! {
                () = shutdown.requested() => break,
                Some(_) = connections.join_next() => {
                    oldest_first.retain(|(_, connection)| !connection.is_finished());
                }
                accepted = accepted => {
                    match accepted {
                        Ok((stream, _)) => {
                            if oldest_first.len() >= CONNECTIONS_MAX {
                                let oldest = oldest_first.pop_front();
                                oldest.iter().for_each(|(_, oldest)| oldest.abort());
                            }
                            let serving =
                                connection(stream, telemetry.clone(), Arc::clone(&access));
                            oldest_first.push_back((Instant::now(), connections.spawn(serving)));
                        }
                        // Out of file descriptors, for example.
                        Err(_) => sleep(ACCEPT_PAUSE).await,
                    }
                }
            }
        }
        let rest = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(GRACE, rest).await;
    }
}

async fn connection(stream: TcpStream, telemetry: Arc<Telemetry>, access: Arc<Access>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = match access.refusal(&request) {
            Some(refusal) => Page::refused(refusal).into_response(),
            None => answer(&telemetry, request.method(), request.uri().path()),
        };
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_MAX);
    let serving = http.keep_alive(false).serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(CONNECTION_MAX, serving).await {
        debug!(%error, "a connection ended early");
    }
}

fn answer(telemetry: &Telemetry, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let text = "text/plain; charset=utf-8";
    let page = match path {
        "/metrics" => Page::new(StatusCode::OK, page::CONTENT_TYPE, telemetry.metrics()),
        "/livez" => Page::probe(&telemetry.live()),
        "/readyz" => Page::probe(&telemetry.ready()),
        _ => {
            let pages = "not found; there are /metrics, /livez and /readyz\n";
            Page::new(StatusCode::NOT_FOUND, text, pages.to_owned())
        }
    };
    if !matches!(*method, Method::GET | Method::HEAD) && page.status != StatusCode::NOT_FOUND {
        let refused = Page::new(StatusCode::METHOD_NOT_ALLOWED, text, "use GET\n".to_owned());
        return refused.into_response();
    }
    page.into_response()
}

struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn new(status: StatusCode, content_type: &'static str, body: String) -> Self {
        Self { status, content_type, body }
    }

    fn refused(refusal: Refusal) -> Self {
        let (status, why) = match refusal {
            Refusal::Host => (
                StatusCode::MISDIRECTED_REQUEST,
                "the relay does not go by this name; add it to hosts in [http]\n",
            ),
            Refusal::Token => {
                (StatusCode::UNAUTHORIZED, "send the token: authorization: Bearer TOKEN\n")
            }
        };
        Self::new(status, "text/plain; charset=utf-8", why.to_owned())
    }

    fn probe(health: &Health) -> Self {
        let status = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut body = serde_json::to_string(health).expect("it has only text, numbers and lists");
        body.push('\n');
        Self::new(status, "application/json", body)
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let value = hyper::header::HeaderValue::from_static;
        headers.insert(CONTENT_TYPE, value(self.content_type));
        headers.insert(CACHE_CONTROL, value("no-store"));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, value("GET, HEAD"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, value("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::secret::Secret;
    use crate::shutdown::shutdown;

    fn config() -> HttpConfig {
        HttpConfig { listen: "127.0.0.1:0".parse().unwrap(), token: None, hosts: Vec::new() }
    }

    async fn ask(address: SocketAddr, headers: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET /livez HTTP/1.1\r\n{headers}\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_name_that_is_not_the_relays_and_a_wrong_token_are_refused() {
        let config = HttpConfig { token: Some(Secret::new("s3cret")), ..config() };
        let server = Server::bind(&config).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = shutdown();
        let serving = tokio::spawn(server.serve(Arc::new(Telemetry::default()), stopped));
        for (headers, expected) in [
            ("Host: 127.0.0.1\r\nAuthorization: Bearer s3cret\r\n", "200 OK"),
            ("Host: localhost:1\r\nauthorization: bearer s3cret\r\n", "200 OK"),
            ("Host: evil.example\r\nAuthorization: Bearer s3cret\r\n", "421 Misdirected Request"),
            ("Host: 127.0.0.1\r\nAuthorization: Bearer s3cre\r\n", "401 Unauthorized"),
            ("Host: 127.0.0.1\r\n", "401 Unauthorized"),
        ] {
            let answer = ask(address, headers).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{headers}: {answer}");
            assert!(!answer.contains("s3cret"), "{answer}");
        }
        stop.stop();
        serving.await.unwrap();
    }

    /// Whoever sends half a request, however often, keeps nobody waiting.
    #[tokio::test]
    async fn half_a_request_holds_nothing_up() {
        let server = Server::bind(&config()).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = shutdown();
        let serving = tokio::spawn(server.serve(Arc::new(Telemetry::default()), stopped));
        let mut halves = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut half = TcpStream::connect(address).await.unwrap();
            half.write_all(b"GET /livez HTTP/1.1\r\nHost:").await.unwrap();
            halves.push(half);
        }
        let probe = async {
            let mut whole = TcpStream::connect(address).await.unwrap();
            whole.write_all(b"GET /livez HTTP/1.1\r\nHost: [::1]\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            whole.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = timeout(REQUEST_MAX / 2, probe).await.expect("it is answered at once");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // And none of them stays.
        let mut rest = Vec::new();
        let ended = halves.last_mut().unwrap().read_to_end(&mut rest);
        let _ = timeout(REQUEST_MAX * 2, ended).await.expect("it is ended");
        stop.stop();
        serving.await.unwrap();
    }

    /// Connections of strangers, as fast as they can be made, end no probe.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flood_of_connections_fails_no_probe() {
        let server = Server::bind(&config()).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = shutdown();
        let serving = tokio::spawn(server.serve(Arc::new(Telemetry::default()), stopped));
        let flooding = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let flood = {
            let flooding = Arc::clone(&flooding);
            std::thread::spawn(move || {
                let mut held = VecDeque::new();
                while flooding.load(std::sync::atomic::Ordering::Relaxed) {
                    held.extend(std::net::TcpStream::connect(address));
                    if held.len() > CONNECTIONS_MAX + 64 {
                        held.pop_front();
                    }
                }
            })
        };
        for number in 0..100 {
            let probe = ask(address, "Host: 127.0.0.1\r\n");
            let answer = timeout(CONNECTION_MAX, probe).await.expect("it is answered in time");
            let answer = answer.unwrap_or_else(|error| panic!("probe {number}: {error}"));
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "probe {number}: {answer:?}");
        }
        flooding.store(false, std::sync::atomic::Ordering::Relaxed);
        flood.join().unwrap();
        stop.stop();
        serving.await.unwrap();
    }

    #[test]
    fn each_path_has_its_answer() {
        let telemetry = Telemetry::default();
        for (method, path, status) in [
            (Method::GET, "/metrics", 200),
            (Method::HEAD, "/metrics", 200),
            (Method::GET, "/livez", 200),
            // No pipeline runs.
            (Method::GET, "/readyz", 503),
            (Method::POST, "/readyz", 405),
            (Method::GET, "/", 404),
            (Method::POST, "/", 404),
            (Method::GET, "/metrics/", 404),
        ] {
            let response = answer(&telemetry, &method, path);
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
        }
    }
}
