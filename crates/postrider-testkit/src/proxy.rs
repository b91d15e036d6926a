//! A proxy between a client and a server that does to their connections what networks do.
//!
//! Each direction of a connection is read by one future and written by another, with a short
//! queue between them, so that latency delays bytes without slowing them down. The write side is
//! where faults happen. Memory is bounded by [`QUEUE_CHUNKS`] times [`CHUNK_BYTES`] for each
//! direction.

mod postgres;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::postgres::{Conversation, Hook, Seen};
use crate::servers::at_port;

const CHUNK_BYTES: usize = 16 * 1024;
const QUEUE_CHUNKS: usize = 64;
/// How often bytes pass when their rate is limited.
const RATE_STEP: Duration = Duration::from_millis(20);

/// Listens on a port of its own until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    /// Bound, but not listening: keeps the port while connections are refused.
    _port: TcpSocket,
    shared: Arc<Shared>,
    /// The task that listens; gone while connections are refused.
    listening: Mutex<JoinSet<()>>,
    /// The connections, which outlive the listener.
    connections: Arc<Mutex<JoinSet<()>>>,
}

/// What is done to the bytes of all connections.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    black_hole: bool,
    /// Raised by each cut; a connection ends when it changes.
    cuts: u64,
    /// A connection ends when its client says this.
    hang_up_at: Option<&'static str>,
    latency: Duration,
    lost_answers: bool,
    rate: Option<u64>,
    slice: Option<usize>,
}

struct Shared {
    upstream: watch::Sender<String>,
    /// What the server says of where it is, and what clients hear instead.
    told: Option<(Vec<u8>, Vec<u8>)>,
    faults: watch::Sender<Faults>,
    /// Whether anything that the server has said was lost since answers are.
    has_lost: watch::Sender<bool>,
    hook: Hook,
}

impl Proxy {
    /// Starts one before a server (`host:port`).
    pub async fn start(upstream: &str) -> Self {
        Self::start_as(upstream, |_| None).await
    }

    /// Starts one before a broker of Kafka (`127.0.0.1:port`), which tells its clients where to
    /// find it: they hear the address of the proxy.
    pub async fn start_before_kafka(upstream: &str) -> Self {
        let (host, port) = upstream.rsplit_once(':').expect("an address has a port");
        let port: u32 = port.parse().expect("a port is a number");
        let address = |port: u32| [host.as_bytes(), &port.to_be_bytes()].concat();
        Self::start_as(upstream, |own| Some((address(port), address(own.port().into())))).await
    }

    async fn start_as(
        upstream: &str,
        told: impl FnOnce(SocketAddr) -> Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let port = bind(any).expect("there is a free port");
        let address = port.local_addr().expect("a bound socket has an address");
        let shared = Shared {
            upstream: watch::Sender::new(upstream.to_owned()),
            told: told(address),
            faults: watch::Sender::default(),
            has_lost: watch::Sender::default(),
            hook: Hook::default(),
        };
        let proxy = Self {
            address,
            _port: port,
            shared: Arc::new(shared),
            listening: Mutex::default(),
            connections: Arc::default(),
        };
        proxy.refuse(false).await;
        proxy
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server, by way of this proxy.
    pub fn url(&self, url: &str) -> String {
        at_port(url, self.address.port())
    }

    /// Resets all connections; new ones go to another server (`host:port`), as after a failover.
    pub fn lead_to(&self, upstream: &str) {
        self.shared.upstream.send_replace(upstream.to_owned());
        self.cut();
    }

    /// Resets all connections. New ones are accepted.
    pub fn cut(&self) {
        self.shared.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Lets nothing pass, either way, while connections stay open and new ones are accepted. As
    /// with a network that comes back, what was sent arrives late, when this is turned off.
    pub fn black_hole(&self, is_on: bool) {
        self.shared.faults.send_modify(|faults| faults.black_hole = is_on);
    }

    /// Delays all bytes, each way.
    pub fn latency(&self, latency: Duration) {
        self.shared.faults.send_modify(|faults| faults.latency = latency);
    }

    /// Lets so many bytes a second pass, each way of each connection.
    pub fn rate(&self, bytes_per_second: u64) {
        self.shared.faults.send_modify(|faults| faults.rate = Some(bytes_per_second.max(1)));
    }

    /// Hands bytes on in pieces of at most this size.
    pub fn slice(&self, bytes: usize) {
        self.shared.faults.send_modify(|faults| faults.slice = Some(bytes.max(1)));
    }

    /// Resets each connection whose client says this. What came with it does not arrive.
    pub fn hang_up_at(&self, text: &'static str) {
        self.shared.faults.send_modify(|faults| faults.hang_up_at = Some(text));
    }

    /// Loses all that the server says, while what clients say arrives there. To be followed by a
    /// cut: bytes that were lost are missed by whoever reads on.
    pub fn lose_answers(&self) {
        self.shared.faults.send_modify(|faults| faults.lost_answers = true);
    }

    /// Waits until something is lost that the server has said.
    pub async fn until_answer_lost(&self) {
        let mut has_lost = self.shared.has_lost.subscribe();
        has_lost.wait_for(|has_lost| *has_lost).await.expect("the sender is ours");
    }

    /// Ends black hole, hanging up, latency, lost answers, rate and slicing.
    pub fn heal(&self) {
        self.shared.faults.send_modify(|faults| {
            *faults = Faults { cuts: faults.cuts, ..Faults::default() };
        });
        self.shared.has_lost.send_replace(false);
    }

    /// Refuses new connections. Those that are open stay.
    pub async fn refuse(&self, is_on: bool) {
        let mut listening = self.listening.lock().await;
        listening.shutdown().await;
        if is_on {
            return;
        }
        let listener = bind(self.address).and_then(|socket| socket.listen(1024));
        let listener = listener.expect("the port is ours");
        let (shared, connections) = (Arc::clone(&self.shared), Arc::clone(&self.connections));
        listening.spawn(accept(listener, shared, connections));
    }

    /// Loses the reply to the next `COMMIT` of a PostgreSQL connection without TLS: the server has
    /// committed, and the connection is reset before the client hears of it.
    pub fn drop_reply_of_commit(&self) {
        self.shared.hook.commit();
    }

    /// Loses the reply to the next statement with this text in it, in the same way. The text is
    /// looked for where it is sent, so in the first use of a prepared statement alone.
    pub fn drop_reply_of(&self, text: &str) {
        self.shared.hook.statement(text);
    }

    /// How many replies were lost so far.
    pub fn dropped_replies(&self) -> u64 {
        self.shared.hook.dropped()
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // So that a listener can come and go while the port is kept.
    socket.set_reuseport(true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: Arc<Mutex<JoinSet<()>>>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        let mut connections = connections.lock().await;
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // It ends when either side hangs up, or the network does.
            let _ = carry(client, &shared).await;
        });
    }
}

/// Carries the bytes of one connection until it ends.
async fn carry(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut faults = shared.faults.subscribe();
    let cuts = faults.borrow_and_update().cuts;
    let cut = async { drop(faults.wait_for(|faults| faults.cuts != cuts).await) };
    tokio::pin!(cut);
    let connect = async {
        passing(&mut shared.faults.subscribe()).await?;
        let upstream = shared.upstream.borrow().clone();
        TcpStream::connect(upstream).await
    };
    let connected = tokio::select! {
        () = &mut cut => Err(io::ErrorKind::ConnectionReset.into()),
        connected = connect => connected,
    };
    let Ok(mut server) = connected else { return client.set_zero_linger() };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let both_ways = async {
        let conversation = Conversation::default();
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let mut said = Vec::new();
        let there = way(client_reads, server_writes, shared, Bytes::from, |chunk| {
            if says(&mut said, chunk, shared.faults.borrow().hang_up_at) {
                return Seen::CutAt(0);
            }
            conversation.client_said(chunk, &shared.hook)
        });
        let heard = |chunk| hear(chunk, shared);
        let back = way(server_reads, client_writes, shared, heard, |chunk| {
            conversation.server_said(chunk, &shared.hook)
        });
        tokio::try_join!(there, back).map(drop)
    };
    let ended = tokio::select! {
        () = &mut cut => Err(io::ErrorKind::ConnectionReset.into()),
        ended = both_ways => ended,
    };
    if ended.is_err() {
        // A reset, and not an orderly end, on both sides.
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    ended
}

/// Whether a text ends in this chunk. What was said before is kept as far as it may begin one.
fn says(said: &mut Vec<u8>, chunk: &[u8], text: Option<&str>) -> bool {
    let Some(text) = text.map(str::as_bytes) else { return false };
    said.extend_from_slice(chunk);
    let is_said = said.windows(text.len()).any(|part| part == text);
    said.drain(..said.len().saturating_sub(text.len() - 1));
    is_said
}

/// What clients hear of what the server has said.
fn hear(mut chunk: Vec<u8>, shared: &Shared) -> Bytes {
    if shared.faults.borrow().lost_answers {
        shared.has_lost.send_replace(true);
        return Bytes::new();
    }
    if let Some((said, heard)) = &shared.told {
        let mut start = 0;
        // It stands in short answers, which come in one piece.
        while let Some(found) = chunk[start..].windows(said.len()).position(|part| part == said) {
            start += found;
            chunk[start..start + heard.len()].copy_from_slice(heard);
            start += heard.len();
        }
    }
    chunk.into()
}

/// Carries one direction to its end. An error ends the connection.
async fn way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    mut hear: impl FnMut(Vec<u8>) -> Bytes,
    mut look: impl FnMut(&[u8]) -> Seen,
) -> io::Result<()> {
    let (queue, mut chunks) = mpsc::channel::<(Instant, Bytes)>(QUEUE_CHUNKS);
    let read = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            let chunk = hear(buffer[..count].to_vec());
            if chunk.is_empty() && count > 0 {
                continue;
            }
            // An empty chunk is the end. The write side takes all of them, or has failed.
            if queue.send((Instant::now(), chunk)).await.is_err() || count == 0 {
                return Ok(());
            }
        }
    };
    let write = async {
        let mut faults = shared.faults.subscribe();
        while let Some((read_at, chunk)) = chunks.recv().await {
            let latency = faults.borrow().latency;
            sleep_until(read_at + latency).await;
            if chunk.is_empty() {
                passing(&mut faults).await?;
                return to.shutdown().await;
            }
            let seen = look(&chunk);
            let (Seen::LoseFrom(length) | Seen::CutAt(length)) = seen else {
                hand_on(&chunk, &mut to, &mut faults).await?;
                continue;
            };
            hand_on(&chunk[..length], &mut to, &mut faults).await?;
            if matches!(seen, Seen::CutAt(_)) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// The faults of the moment, as soon as they let anything pass.
async fn passing(faults: &mut watch::Receiver<Faults>) -> io::Result<Faults> {
    let faults = faults.wait_for(|faults| !faults.black_hole).await;
    faults.map(|faults| *faults).map_err(|_| io::ErrorKind::ConnectionReset.into())
}

/// Writes bytes as the faults of the moment allow.
async fn hand_on(
    mut bytes: &[u8],
    to: &mut (impl AsyncWrite + Unpin),
    faults: &mut watch::Receiver<Faults>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let now = passing(faults).await?;
        let per_step = now.rate.map(|rate| rate.div_ceil(1000 / RATE_STEP.as_millis() as u64));
        let most = now.slice.unwrap_or(usize::MAX).min(per_step.map_or(usize::MAX, |n| n as usize));
        let (piece, rest) = bytes.split_at(most.min(bytes.len()));
        to.write_all(piece).await?;
        bytes = rest;
        match now.rate {
            Some(rate) => sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64)).await,
            // So that the other side can read the piece before the next one.
            None => tokio::task::yield_now().await,
        }
    }
    Ok(())
}
