//! Sends and receives whole messages.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::cut::Cutter;
use crate::socket::{Opened, Socket, Stream};
use crate::{Error, ServerError};

/// What stands before a message: its tag and its length.
pub(crate) const HEADER_BYTES: usize = 1 + 4;
/// The server cannot make a longer one.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// The longest message before the login is complete, and all of them together.
pub(crate) const LOGIN_MESSAGE_BYTES_MAX: usize = 64 << 10;
pub(crate) const LOGIN_BYTES_MAX: usize = 1 << 20;
/// The longest message that is not a part of a stream, and all that answer one command.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The tag of what is streamed.
pub(crate) const STREAMED: u8 = b'd';
/// Memory is taken in pieces of this size, which many messages share.
const CHUNK_BYTES: usize = 256 << 10;
/// There is at least this much room for a read.
const READ_BYTES_MIN: usize = 64 << 10;
/// A message of this size has memory of its own, so that it does not stay when it is gone.
const LARGE_BYTES: usize = 1 << 20;

/// A connection, as messages.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    socket: Socket,
    /// What was received and not taken yet.
    incoming: BytesMut,
    /// An error that came after bytes that were to be handed over first.
    failed: Option<io::Error>,
    /// The longest message that is not a part of a stream.
    bytes_max: usize,
    /// Leaves out the long values of a stream, once there is one.
    cutter: Option<Cutter>,
}

impl Wire {
    /// A connection on which nobody has logged in.
    pub(crate) fn new(opened: Opened) -> Self {
        let Opened { stream, socket, binding: _ } = opened;
        Self {
            stream,
            socket,
            incoming: BytesMut::new(),
            failed: None,
            bytes_max: LOGIN_MESSAGE_BYTES_MAX,
            cutter: None,
        }
    }

    /// The login is complete: the server may send longer messages.
    pub(crate) fn logged_in(&mut self) {
        self.bytes_max = ANSWER_BYTES_MAX;
    }

    /// A stream is to begin, of which longer values are not kept.
    pub(crate) fn streaming(&mut self, value_bytes_max: usize) {
        self.cutter = Some(Cutter::new(value_bytes_max));
    }

    /// Takes the connection to the runtime of the caller.
    pub(crate) fn adopt(&self) -> io::Result<()> {
        self.socket.adopt()
    }

    /// See [`Socket::is_loopback`].
    pub(crate) fn is_loopback(&self) -> bool {
        self.socket.is_loopback()
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next message with its header. Nothing is lost if this is given up.
    pub(crate) async fn message(&mut self) -> Result<Bytes, Error> {
        loop {
            if let Some(length) = self.complete()? {
                return Ok(self.take(length));
            }
            self.fill().await?;
        }
    }

    /// The length of the next message, if all of it was received. If it has values that are not
    /// kept, that is the length without them.
    pub(crate) fn complete(&mut self) -> Result<Option<usize>, Error> {
        if let Some(cutter) = self.cutter.as_mut().filter(|cutter| cutter.is_cutting()) {
            return cutter.feed(&mut self.incoming);
        }
        let announced = self.announced()?;
        match (announced, &mut self.cutter) {
            (Some(length), Some(cutter)) if cutter.must_cut(length) => {
                cutter.begin(length);
                cutter.feed(&mut self.incoming)
            }
            (announced, _) => Ok(announced.filter(|length| *length <= self.incoming.len())),
        }
    }

    /// Takes a message of a length that is known to have been received.
    pub(crate) fn take(&mut self, length: usize) -> Bytes {
        if let Some(message) = self.cutter.as_mut().and_then(Cutter::take) {
            return message;
        }
        let message = self.incoming.split_to(length).freeze();
        if let Some(cutter) = &mut self.cutter {
            cutter.note(&message);
        }
        if length >= LARGE_BYTES {
            let rest = std::mem::take(&mut self.incoming);
            self.incoming.reserve(CHUNK_BYTES.max(rest.len()));
            self.incoming.extend_from_slice(&rest);
        }
        message
    }

    /// Waits for bytes and takes all that are there, up to a piece. Answers how many. Nothing is
    /// lost if this is given up.
    pub(crate) async fn fill(&mut self) -> Result<usize, Error> {
        if let Some(err) = self.failed.take() {
            return Err(err.into());
        }
        let missing = match &self.cutter {
            Some(cutter) if cutter.is_cutting() => 0,
            _ => self.announced()?.unwrap_or(0).saturating_sub(self.incoming.len()),
        };
        let mut received = 0;
        poll_fn(|cx| {
            // TLS gives no more than one record at a time, so it is asked until it has no more.
            while received < CHUNK_BYTES {
                make_room(&mut self.incoming, missing.saturating_sub(received));
                match pin!(self.stream.read_buf(&mut self.incoming)).poll(cx) {
                    Poll::Ready(Ok(count)) if count > 0 => received += count,
                    Poll::Pending if received == 0 => return Poll::Pending,
                    Poll::Pending => break,
                    Poll::Ready(Ok(_)) if received == 0 => {
                        return Poll::Ready(Err(Error::closed()));
                    }
                    Poll::Ready(Ok(_)) => break,
                    Poll::Ready(Err(err)) if received == 0 => {
                        return Poll::Ready(Err(err.into()));
                    }
                    Poll::Ready(Err(err)) => {
                        self.failed = Some(err);
                        break;
                    }
                }
            }
            Poll::Ready(Ok(received))
        })
        .await
    }

    /// The length of the next message, header included, if its header was received.
    fn announced(&self) -> Result<Option<usize>, Error> {
        let Some([tag, length @ ..]) = self.incoming.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(Error::Protocol(
                "the server sent a message of an impossible length".into(),
            ));
        }
        let is_streamed = *tag == STREAMED && self.cutter.is_some();
        if !is_streamed && length > self.bytes_max {
            return Err(Error::too_long(*tag, length, self.bytes_max));
        }
        Ok(Some(1 + length))
    }
}

/// Makes room for a read, and for what is missing of a message. Not for all of it at once: the
/// memory grows with what was received, not with what is announced.
fn make_room(incoming: &mut BytesMut, missing: usize) {
    if incoming.capacity() - incoming.len() < READ_BYTES_MIN {
        incoming.reserve(missing.min(incoming.len()).max(CHUNK_BYTES));
    }
}

/// What is in a message behind its header.
pub(crate) fn body(message: &Bytes) -> Bytes {
    message.slice(HEADER_BYTES..)
}

/// The error that a message is.
pub(crate) fn server_error(message: &Bytes) -> Error {
    match ServerError::read(body(message)) {
        Ok(error) => Error::Server(Box::new(error)),
        Err(malformed) => malformed.into(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    fn wire() -> (Wire, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(4 << 20);
        let (stream, socket) = (Box::new(ours), Socket::nowhere());
        let mut wire = Wire::new(Opened { stream, socket, binding: None });
        wire.logged_in();
        wire.streaming(usize::MAX);
        (wire, theirs)
    }

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag][..], &length.to_be_bytes(), body].concat()
    }

    #[tokio::test]
    async fn messages_come_whole_and_in_order() {
        let (mut wire, mut server) = wire();
        let large: Vec<u8> = (0u32..3_000_000).map(|at| (at % 251) as u8).collect();
        let messages = [message(b'a', b""), message(b'b', &large), message(b'c', b"end")];
        let all = messages.concat();
        let sending = tokio::spawn(async move {
            for piece in all.chunks(70_001) {
                server.write_all(piece).await.unwrap();
            }
            server.write_all(&message(b'd', b"cut")[..6]).await.unwrap();
        });
        for expected in &messages {
            let received = wire.message().await.unwrap();
            assert!(received == expected, "{} bytes", received.len());
        }
        sending.await.unwrap();
        let cut = wire.message().await.unwrap_err();
        assert!(matches!(cut, Error::Io(err) if err.kind() == io::ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn a_length_is_not_believed() {
        let (mut wire, mut server) = wire();
        server.write_all(&[b'd', 0x3F, 0xFF, 0xFF, 0xFF]).await.unwrap();
        wire.fill().await.unwrap();
        server.write_all(b"only this").await.unwrap();
        wire.fill().await.unwrap();
        assert!(wire.incoming.capacity() <= 2 * CHUNK_BYTES, "{}", wire.incoming.capacity());

        for length in [0u32, 3, u32::MAX] {
            let (mut wire, mut server) = self::wire();
            server.write_all(&[&[b'd'][..], &length.to_be_bytes()].concat()).await.unwrap();
            assert!(matches!(wire.message().await, Err(Error::Protocol(_))), "{length}");
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_refused_before_it_is_received() {
        let header = |tag: u8, length: usize| {
            [&[tag][..], &u32::try_from(length).unwrap().to_be_bytes()].concat()
        };
        for (is_logged_in, bytes_max) in
            [(false, LOGIN_MESSAGE_BYTES_MAX), (true, ANSWER_BYTES_MAX)]
        {
            // An error, a parameter, a row.
            for tag in [b'E', b'S', b'D', b'd'] {
                let (mut wire, mut server) = self::wire();
                wire.cutter = None;
                if !is_logged_in {
                    wire.bytes_max = LOGIN_MESSAGE_BYTES_MAX;
                }
                server.write_all(&header(tag, bytes_max)).await.unwrap();
                wire.fill().await.unwrap();
                assert!(wire.complete().unwrap().is_none(), "this long it may be");
                let (mut wire, mut server) = self::wire();
                wire.cutter = None;
                if !is_logged_in {
                    wire.bytes_max = LOGIN_MESSAGE_BYTES_MAX;
                }
                server.write_all(&header(tag, bytes_max + 1)).await.unwrap();
                let refused = wire.message().await.unwrap_err().to_string();
                assert!(refused.contains(&format!("{bytes_max}")), "{refused}");
            }
        }
    }

    #[tokio::test]
    async fn a_large_message_leaves_no_memory_behind() {
        let (mut wire, mut server) = wire();
        server.write_all(&message(b'd', &vec![0; 3 << 20])).await.unwrap();
        server.write_all(&message(b'd', b"small")).await.unwrap();
        drop(wire.message().await.unwrap());
        wire.message().await.unwrap();
        assert!(wire.incoming.capacity() <= 2 * CHUNK_BYTES, "{}", wire.incoming.capacity());
    }
}
