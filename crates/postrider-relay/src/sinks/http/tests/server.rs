//! Servers for the tests: one that speaks HTTP, and one that does what it is told to the socket.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

type Answer = Response<Full<Bytes>>;

/// An answer of a status and no body.
pub(super) fn respond(status: u16) -> Answer {
    Response::builder().status(status).body(Full::default()).unwrap()
}

/// What has arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) line: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// Answers every request alike and passes on what has arrived. Ends when it is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) requests: mpsc::UnboundedReceiver<Received>,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let answer = Arc::new(answer);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (sender, answer) = (sender.clone(), Arc::clone(&answer));
                let accepted = Arc::clone(&accepted);
                let service = service_fn(move |request: Request<Incoming>| {
                    let (sender, answer) = (sender.clone(), Arc::clone(&answer));
                    async move {
                        let line = format!("{} {}", request.method(), request.uri());
                        let headers = request.headers().clone();
                        let body = request.into_body().collect().await?.to_bytes();
                        let _ = sender.send(Received { line, headers, body });
                        Ok::<_, hyper::Error>(answer())
                    }
                });
                served.spawn(async move {
                    accepted.fetch_add(1, Ordering::SeqCst);
                    let _ =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, requests, connections, _tasks: tasks }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Takes one connection, reads the head of a request and hands the socket to a function.
pub(super) struct RawServer {
    pub(super) address: SocketAddr,
    thread: JoinHandle<u64>,
}

impl RawServer {
    pub(super) fn start(answer: impl FnOnce(TcpStream) -> u64 + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{\"a\":1}") {
                let mut buffer = [0; 4096];
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0, "the request ended early");
                request.extend_from_slice(&buffer[..count]);
            }
            answer(stream)
        });
        Self { address, thread }
    }

    /// What the function has returned. Waits aside, so that the client can go on meanwhile.
    pub(super) async fn finish(self) -> u64 {
        tokio::task::spawn_blocking(|| self.thread.join().unwrap()).await.unwrap()
    }
}
