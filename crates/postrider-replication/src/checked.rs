//! A connection of which every message of the server is looked at before tokio-postgres gets it.
//!
//! tokio-postgres receives a message of any length before it looks at it, and answers whatever
//! request for a password. So the stream below it follows the messages, each with a tag and a
//! length before it, and fails at one that is too long or asks for what is not permitted. What was
//! received of it until then is all that it takes in memory.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::auth::{AuthCheck, AuthMethods, RefusedAuth};
use crate::reader::Reader;
use crate::socket::Stream;
use crate::wire::{HEADER_BYTES, LOGIN_BYTES_MAX, LOGIN_MESSAGE_BYTES_MAX};

/// The longest message after the login. A row has one event, of little more than 1 MiB with its
/// headers, or a checkpoint, of a few MiB with 100 000 rows that are not settled in order.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// All messages that answer one statement together: what is read at once is a batch, or the keys
/// that are blocked.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Why a message of a server is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedMessage {
    /// It is too long.
    #[error(
        "the server sent a message {} of {bytes} bytes, the limit is {bytes_max}",
        char::from(*.tag).escape_default()
    )]
    TooLong {
        /// What kind of message it is.
        tag: u8,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
    /// It can have no such length.
    #[error("the server sent a message of an impossible length")]
    Impossible,
    /// There is no end of the answer that it belongs to.
    #[error("the server sent an answer of more than {bytes_max} bytes")]
    Endless {
        /// How long an answer may be.
        bytes_max: usize,
    },
    /// It asks for what is not permitted.
    #[error(transparent)]
    Auth(#[from] RefusedAuth),
}

/// A stream to a server, with its messages checked.
pub struct Checked {
    stream: Box<dyn Stream>,
    messages: Messages,
}

impl Checked {
    pub(crate) fn new(stream: Box<dyn Stream>, permitted: AuthMethods) -> Self {
        Self { stream, messages: Messages::new(permitted) }
    }
}

impl AsyncRead for Checked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let checked = self.messages.follow(&buffer.filled()[before..]);
        Poll::Ready(checked.map_err(|refused| {
            buffer.set_filled(before);
            io::Error::new(io::ErrorKind::InvalidData, refused)
        }))
    }
}

impl AsyncWrite for Checked {
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

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked").finish_non_exhaustive()
    }
}

/// Follows the messages of a server through what is received, in pieces of any size.
#[derive(Debug)]
struct Messages {
    auth: AuthCheck,
    is_logged_in: bool,
    header: [u8; HEADER_BYTES],
    /// How much of the header was received.
    header_bytes: usize,
    /// How much of the message is to come behind its header.
    left_bytes: usize,
    /// What was received since the server was last ready.
    answer_bytes: usize,
    /// What was received of a request for authentication.
    request: Vec<u8>,
}

impl Messages {
    fn new(permitted: AuthMethods) -> Self {
        Self {
            auth: AuthCheck::new(permitted),
            is_logged_in: false,
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            left_bytes: 0,
            answer_bytes: 0,
            request: Vec::new(),
        }
    }

    fn follow(&mut self, mut received: &[u8]) -> Result<(), RefusedMessage> {
        while !received.is_empty() {
            if self.header_bytes < HEADER_BYTES {
                let count = received.len().min(HEADER_BYTES - self.header_bytes);
                let (head, rest) = received.split_at(count);
                self.header[self.header_bytes..][..count].copy_from_slice(head);
                self.header_bytes += count;
                received = rest;
                if self.header_bytes < HEADER_BYTES {
                    return Ok(());
                }
                self.begin()?;
            }
            let (body, rest) = received.split_at(received.len().min(self.left_bytes));
            self.left_bytes -= body.len();
            received = rest;
            if self.is_request() {
                self.request.extend_from_slice(body);
            }
            if self.left_bytes == 0 {
                self.end()?;
            }
        }
        Ok(())
    }

    /// The header of a message is there.
    fn begin(&mut self) -> Result<(), RefusedMessage> {
        let [tag, length @ ..] = self.header;
        let bytes = u32::from_be_bytes(length) as usize;
        let (bytes_max, answer_bytes_max) = match self.is_logged_in {
            false => (LOGIN_MESSAGE_BYTES_MAX, LOGIN_BYTES_MAX),
            true => (MESSAGE_BYTES_MAX, ANSWER_BYTES_MAX),
        };
        if bytes > bytes_max {
            return Err(RefusedMessage::TooLong { tag, bytes, bytes_max });
        }
        // The length counts itself.
        self.left_bytes = bytes.checked_sub(4).ok_or(RefusedMessage::Impossible)?;
        self.answer_bytes += 1 + bytes;
        if self.answer_bytes > answer_bytes_max {
            return Err(RefusedMessage::Endless { bytes_max: answer_bytes_max });
        }
        Ok(())
    }

    /// All of a message is there, and tokio-postgres has not got the last of it.
    fn end(&mut self) -> Result<(), RefusedMessage> {
        self.header_bytes = 0;
        match self.header[0] {
            // Ready for a statement.
            b'Z' => (self.is_logged_in, self.answer_bytes) = (true, 0),
            b'R' if !self.is_logged_in => {
                let request = Bytes::from(std::mem::take(&mut self.request));
                self.auth.check(Reader::new(request))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn is_request(&self) -> bool {
        self.header[0] == b'R' && !self.is_logged_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(4 + body.len()).unwrap();
        [&[tag][..], &length.to_be_bytes(), body].concat()
    }

    fn header(tag: u8, bytes: usize) -> Vec<u8> {
        [&[tag][..], &u32::try_from(bytes).unwrap().to_be_bytes()].concat()
    }

    fn logged_in() -> Messages {
        let mut messages = Messages::new(AuthMethods::ALL);
        messages.follow(&message(b'R', &[0; 4])).unwrap();
        messages.follow(&message(b'Z', b"I")).unwrap();
        messages
    }

    #[test]
    fn messages_are_followed_whatever_the_pieces() {
        let login = [message(b'R', &[0, 0, 0, 3]), message(b'R', &[0; 4]), message(b'Z', b"I")];
        let row = message(b'D', &vec![b'R'; 70_000]);
        let all = [login.concat(), row, message(b'C', b""), message(b'Z', b"I")].concat();
        for size in [1, 2, 5, 7, 4096, all.len()] {
            let mut messages = Messages::new(AuthMethods::ALL);
            for piece in all.chunks(size) {
                messages.follow(piece).unwrap();
            }
            assert!(messages.is_logged_in && messages.answer_bytes == 0, "{size}");
            assert_eq!((messages.header_bytes, messages.left_bytes), (0, 0), "{size}");
            // The request for the password is refused in whatever pieces it comes.
            let mut messages = Messages::new(!AuthMethods::PASSWORD);
            let followed = all.chunks(size).try_for_each(|piece| messages.follow(piece));
            let refused = RefusedMessage::Auth(RefusedAuth::Password).to_string();
            assert_eq!(followed.unwrap_err().to_string(), refused, "{size}");
        }
    }

    #[test]
    fn a_message_has_a_limit_before_the_login_and_after_it() {
        let limits = [(false, LOGIN_MESSAGE_BYTES_MAX), (true, MESSAGE_BYTES_MAX)];
        for (is_logged_in, bytes_max) in limits {
            for tag in [b'E', b'S', b'D', b'R', b'N'] {
                let messages = || match is_logged_in {
                    true => logged_in(),
                    false => Messages::new(AuthMethods::ALL),
                };
                messages().follow(&header(tag, bytes_max)).expect("this long it may be");
                let refused = messages().follow(&header(tag, bytes_max + 1)).unwrap_err();
                let is_too_long = matches!(refused, RefusedMessage::TooLong { .. });
                assert!(is_too_long, "{refused}");
                let refused = messages().follow(&header(tag, 3)).unwrap_err();
                assert!(matches!(refused, RefusedMessage::Impossible), "{refused}");
            }
        }
    }

    #[test]
    fn an_answer_has_an_end() {
        let parameter = message(b'S', &[0; 1000]);
        let mut messages = Messages::new(AuthMethods::ALL);
        let count = (0..).take_while(|_| messages.follow(&parameter).is_ok()).count();
        assert!(count * parameter.len() <= LOGIN_BYTES_MAX);
        // One statement after another may answer as much as they like.
        let (row, ready) = (message(b'D', &vec![0; 1 << 20]), message(b'Z', b"I"));
        let mut messages = logged_in();
        for _ in 0..2000 {
            messages.follow(&row).unwrap();
            messages.follow(&ready).unwrap();
        }
        let count = (0..).take_while(|_| messages.follow(&row).is_ok()).count();
        assert_eq!(count, ANSWER_BYTES_MAX / row.len());
    }
}
