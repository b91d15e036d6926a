//! An HTTP endpoint that can misbehave. It speaks to the socket itself, because no library for
//! servers would answer garbage or hang up before its answer.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::suites::sink::Behaviour;

/// A request that came whole.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Listens on a port of its own until it is dropped.
pub(crate) struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The task that listens, with its connections; gone while the endpoint is away.
    listening: tokio::sync::Mutex<JoinSet<()>>,
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    kept: Mutex<Vec<Request>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("there is a free port");
        let endpoint = Self {
            address: listener.local_addr().expect("a listener has an address"),
            shared: Arc::new(Shared {
                behaviour: Mutex::new(Behaviour::Well),
                kept: Mutex::default(),
            }),
            listening: tokio::sync::Mutex::default(),
        };
        endpoint.listen(listener).await;
        endpoint
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests that were accepted, whether or not the answer arrived.
    pub(crate) fn kept(&self) -> Vec<Request> {
        self.kept_from(0)
    }

    /// The same without the first ones.
    pub(crate) fn kept_from(&self, first: usize) -> Vec<Request> {
        lock(&self.shared.kept)[first..].to_vec()
    }

    pub(crate) async fn behave(&self, behaviour: Behaviour) {
        let before = std::mem::replace(&mut *lock(&self.shared.behaviour), behaviour);
        if behaviour == Behaviour::Away {
            self.listening.lock().await.shutdown().await;
        } else if before == Behaviour::Away {
            let listener = TcpListener::bind(self.address).await;
            self.listen(listener.expect("the port is still free")).await;
        }
    }

    async fn listen(&self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        self.listening.lock().await.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    // It ends when the other side hangs up, or this one has to.
                    let _ = serve(stream, &shared).await;
                });
            }
        });
    }
}

/// Serves requests on one connection until either side is tired of it.
async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        let behaviour = *lock(&shared.behaviour);
        let refused = |key: &str| request.headers.get("postrider-key").is_some_and(|k| k == key);
        let status = match behaviour {
            Behaviour::Well | Behaviour::LosesAnswer => 204,
            Behaviour::RefusesKey(key) if refused(key) => 422,
            Behaviour::AnswersKey(key, status) if refused(key) => status,
            Behaviour::RefusesKey(_) | Behaviour::AnswersKey(..) => 204,
            Behaviour::Answers(status) | Behaviour::AnswersPause(status, _) => status,
            Behaviour::Redirects => 307,
            Behaviour::Garbage => 0,
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Away | Behaviour::HangsUpAt(_) => return Ok(()),
        };
        if status / 100 == 2 {
            lock(&shared.kept).push(request);
        }
        let answer = match behaviour {
            Behaviour::LosesAnswer => return Ok(()),
            Behaviour::Garbage => "canary\0\r\n\r\n".to_owned(),
            Behaviour::Redirects => answer(status, "location: /elsewhere\r\n"),
            Behaviour::AnswersPause(_, seconds) => {
                answer(status, &format!("retry-after: {seconds}\r\n"))
            }
            _ => answer(status, ""),
        };
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

fn answer(status: u16, headers: &str) -> String {
    // 204 has no body and must not say how long it is.
    let length = if status == 204 { "" } else { "content-length: 0\r\n" };
    format!("HTTP/1.1 {status} Whatever\r\n{headers}{length}\r\n")
}

/// The next request, or `None` if there is no whole one.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let head_end = loop {
        let found = buffer.windows(4).position(|window| window == END_OF_HEAD);
        match found {
            Some(position) => break position + END_OF_HEAD.len(),
            None if stream.read_buf(buffer).await? == 0 => return Ok(None),
            None => {}
        }
    };
    let headers = headers(&String::from_utf8_lossy(&buffer[..head_end]));
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let request_end = head_end + length.unwrap_or(0);
    while buffer.len() < request_end {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer[head_end..request_end].to_vec();
    buffer.drain(..request_end);
    Ok(Some(Request { headers, body }))
}

fn headers(head: &str) -> BTreeMap<String, String> {
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    head.lines().skip(1).filter_map(header).collect()
}
