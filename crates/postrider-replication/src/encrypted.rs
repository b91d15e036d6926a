//! For tokio-postgres, a connection that is encrypted already.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// Takes a stream that is encrypted, if it has something to bind the login to.
pub(crate) struct Encrypted(pub(crate) Option<ChannelBinding>);

impl Encrypted {
    /// The configuration for such a stream, which takes no negotiation.
    pub(crate) fn config(&self, config: &Config) -> Config {
        let mut config = config.clone();
        match self.0 {
            Some(_) => config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct),
            None => config.ssl_mode(SslMode::Disable),
        };
        config
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for Encrypted {
    type Stream = EncryptedStream<S>;
    type Error = Infallible;
    type Future = Ready<Result<EncryptedStream<S>, Infallible>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(EncryptedStream { stream, binding: Cell::new(self.0) }))
    }
}

/// A stream that is encrypted, and what a login over it is bound to.
pub struct EncryptedStream<S> {
    stream: S,
    binding: Cell<Option<ChannelBinding>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for EncryptedStream<S> {
    /// It is asked for once.
    fn channel_binding(&self) -> ChannelBinding {
        self.binding.take().unwrap_or_else(ChannelBinding::none)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> fmt::Debug for EncryptedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedStream").finish_non_exhaustive()
    }
}
