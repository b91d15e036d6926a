//! The way to the server: a socket, encrypted if that is wanted.

use std::any::TypeId;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, NoTlsStream, TlsConnect, TlsStream};

use crate::Error;

const PORT: u16 = 5432;
/// What is received from a server on the same machine before it is read, in bytes. As the window
/// is full soon, the server's kernel puts together what comes after that.
const LOOPBACK_BUFFER_BYTES: usize = 64 << 10;

/// What carries the bytes, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that was opened but not used.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    /// The socket below the stream.
    pub(crate) socket: Socket,
    /// What ties the login to the encryption, if there is one.
    pub(crate) binding: Option<ChannelBinding>,
}

/// Connects to the one host of a configuration and encrypts the connection as it says.
pub(crate) async fn open<T>(config: &Config, tls: &mut T) -> Result<Opened, Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (host, ip) = match (config.get_hosts(), config.get_hostaddrs()) {
        ([host], []) => (Some(host), None),
        ([host], [ip]) => (Some(host), Some(*ip)),
        ([], [ip]) => (None, Some(*ip)),
        _ => return Err(Error::Config("the configuration must have exactly one host")),
    };
    let port = match config.get_ports() {
        [] => PORT,
        [port] => *port,
        _ => return Err(Error::Config("the configuration must have one port at most")),
    };
    let name = match host {
        Some(Host::Tcp(name)) => Some(name.as_str()),
        Some(Host::Unix(_)) | None => None,
    };
    let mut socket = match (host, ip) {
        (_, Some(ip)) => Socket::tcp(&[(ip, port).into()], config).await?,
        (Some(Host::Unix(folder)), None) => Socket::unix(folder, port, config).await?,
        (Some(Host::Tcp(name)), None) => {
            let addresses: Vec<_> = lookup_host((name.as_str(), port)).await?.collect();
            Socket::tcp(&addresses, config).await?
        }
        (None, None) => unreachable!("there is a host or an address"),
    };
    if !is_encrypted::<T>(&mut socket, config).await? {
        return Ok(Opened { stream: Box::new(socket.handle()), socket, binding: None });
    }
    let Some(name) = name else {
        return Err(Error::Tls("the configuration has no name of a host to verify".into()));
    };
    let connector = tls.make_tls_connect(name).map_err(|err| Error::Tls(err.into()))?;
    let encrypting = connector.connect(socket.handle());
    let stream = encrypting.await.map_err(|err| Error::Tls(err.into()))?;
    let binding = Some(stream.channel_binding());
    Ok(Opened { stream: Box::new(stream), socket, binding })
}

/// Whether both sides go on with TLS.
async fn is_encrypted<T>(socket: &mut Socket, config: &Config) -> Result<bool, Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: 'static,
{
    let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
    let is_required = match config.get_ssl_mode() {
        SslMode::Disable => return Ok(false),
        // There is nothing to encrypt with.
        SslMode::Prefer if TypeId::of::<T::Stream>() == TypeId::of::<NoTlsStream>() => {
            return Ok(false);
        }
        SslMode::Prefer if is_direct => {
            return Err(Error::Config("sslnegotiation=direct takes sslmode=require"));
        }
        SslMode::Prefer => false,
        _ => true,
    };
    if is_direct {
        return Ok(true);
    }
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    socket.write_all(&request).await?;
    match socket.read_u8().await? {
        b'S' => Ok(true),
        _ if is_required => Err(Error::Tls("the server does not support TLS".into())),
        _ => Ok(false),
    }
}

/// The socket of a connection, which TLS is put upon.
pub struct Socket(Arc<Mutex<Inner>>);

enum Inner {
    Tcp(TcpStream),
    Unix(UnixStream),
    Lost,
}

impl Socket {
    async fn tcp(addresses: &[SocketAddr], config: &Config) -> Result<Self, Error> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            match within(config.get_connect_timeout(), TcpStream::connect(address)).await {
                Ok(stream) => {
                    prepare(&stream, config)?;
                    return Ok(Self::new(Inner::Tcp(stream)));
                }
                Err(err) => last = err,
            }
        }
        Err(last.into())
    }

    async fn unix(folder: &Path, port: u16, config: &Config) -> Result<Self, Error> {
        let connecting = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}")));
        Ok(Self::new(Inner::Unix(within(config.get_connect_timeout(), connecting).await?)))
    }

    fn new(inner: Inner) -> Self {
        Self(Arc::new(Mutex::new(inner)))
    }

    /// The same socket: one for the stream upon it, one to take it to another runtime.
    fn handle(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self::new(Inner::Lost)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server is on the same machine, behind a network that has no delay.
    pub(crate) fn is_loopback(&self) -> bool {
        match &*self.lock() {
            Inner::Tcp(stream) => is_loopback(stream),
            Inner::Unix(_) | Inner::Lost => false,
        }
    }

    /// The address of the server, unless it is a socket of this machine.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        match &*self.lock() {
            Inner::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Inner::Unix(_) | Inner::Lost => None,
        }
    }

    /// Bounds what is received before it is read, if the server is on the same machine.
    pub(crate) fn shrink_on_loopback(&self) -> io::Result<()> {
        match &*self.lock() {
            Inner::Tcp(stream) if is_loopback(stream) => {
                SockRef::from(stream).set_recv_buffer_size(LOOPBACK_BUFFER_BYTES)
            }
            _ => Ok(()),
        }
    }

    /// Takes it to the runtime of the caller. No call may be waiting for it.
    pub(crate) fn adopt(&self) -> io::Result<()> {
        let mut inner = self.lock();
        *inner = match std::mem::replace(&mut *inner, Inner::Lost) {
            Inner::Tcp(stream) => Inner::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Inner::Unix(stream) => Inner::Unix(UnixStream::from_std(stream.into_std()?)?),
            Inner::Lost => Inner::Lost,
        };
        Ok(())
    }
}

fn prepare(stream: &TcpStream, config: &Config) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    if let Some(timeout) = config.get_tcp_user_timeout() {
        socket.set_tcp_user_timeout(Some(*timeout))?;
    }
    if config.get_keepalives() {
        let mut keepalive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            keepalive = keepalive.with_retries(retries);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}

fn is_loopback(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok_and(|address| address.ip().is_loopback())
}

async fn within<S>(
    limit: Option<&Duration>,
    connecting: impl Future<Output = io::Result<S>>,
) -> io::Result<S> {
    match limit {
        None => connecting.await,
        Some(limit) => timeout(*limit, connecting).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"))
        }),
    }
}

fn lost<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self.lock() {
            Inner::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Inner::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Inner::Lost => lost(),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self.lock() {
            Inner::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Lost => lost(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.lock() {
            Inner::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Lost => lost(),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.lock() {
            Inner::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Lost => lost(),
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}
