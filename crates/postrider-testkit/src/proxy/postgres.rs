//! Follows the messages of a PostgreSQL connection, far enough to lose the reply to a statement.
//! It only looks on: bytes of another protocol, or of TLS, pass as they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Longest part of a message that is kept to be looked at.
const HEAD_BYTES_MAX: usize = 64 * 1024;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// Which reply is to be lost next, on whatever connection.
#[derive(Debug, Default)]
pub(super) struct Hook {
    wanted: Mutex<Option<Wanted>>,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Wanted {
    Commit,
    Statement(String),
}

impl Hook {
    pub(super) fn commit(&self) {
        *lock(&self.wanted) = Some(Wanted::Commit);
    }

    pub(super) fn statement(&self, text: &str) {
        *lock(&self.wanted) = Some(Wanted::Statement(text.to_owned()));
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Whether this is what is wanted. It happens once.
    fn takes(&self, is_wanted: impl Fn(&Wanted) -> bool) -> bool {
        lock(&self.wanted).take_if(|wanted| is_wanted(wanted)).is_some()
    }
}

/// What becomes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Pass,
    /// What stands before this position passes, the rest is lost.
    LoseFrom(usize),
    /// The same, and then the connection ends.
    CutAt(usize),
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Conversation(Mutex<State>);

#[derive(Debug)]
struct State {
    client: Messages,
    server: Messages,
    /// Replies that the client has asked for and the server has not finished. The start of a
    /// session is one.
    replies_due: u64,
    reply: Reply,
}

/// The reply that is to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    None,
    /// It comes after so many others.
    After(u64),
    /// It is being lost, up to its end.
    Losing,
}

impl Default for State {
    fn default() -> Self {
        let (client, server) = (Messages::new(Shape::Startup), Messages::new(Shape::Typed));
        Self { client, server, replies_due: 0, reply: Reply::None }
    }
}

impl Conversation {
    pub(super) fn client_said(&self, chunk: &[u8], hook: &Hook) -> Seen {
        let state = &mut *lock(&self.0);
        let State { client, server, replies_due, reply } = state;
        client.follow(chunk, |message| match message.kind {
            None => match message.body.first_chunk().map(|code| u32::from_be_bytes(*code)) {
                // Answered by one byte; then the session starts, or TLS does.
                Some(SSL_REQUEST | GSS_REQUEST) => {
                    server.shape = Shape::OneByte;
                    Shape::Startup
                }
                _ => {
                    *replies_due += 1;
                    Shape::Typed
                }
            },
            // Query and Parse have the statement in them; Query and Sync ask for a reply.
            Some(kind) => {
                let text = String::from_utf8_lossy(message.body);
                let is_it = |wanted: &Wanted| {
                    matches!(wanted, Wanted::Statement(part) if text.contains(part.as_str()))
                };
                if matches!(kind, b'Q' | b'P') && hook.takes(is_it) {
                    *reply = Reply::After(*replies_due);
                }
                if matches!(kind, b'Q' | b'S') {
                    *replies_due += 1;
                }
                Shape::Typed
            }
        });
        Seen::Pass
    }

    pub(super) fn server_said(&self, chunk: &[u8], hook: &Hook) -> Seen {
        let state = &mut *lock(&self.0);
        let State { client, server, replies_due, reply } = state;
        let mut lost_from = (*reply == Reply::Losing).then_some(0);
        let mut is_over = false;
        server.follow(chunk, |message| {
            let Some(kind) = message.kind else {
                if matches!(message.body, b"G" | b"S") {
                    client.shape = Shape::Opaque;
                    return Shape::Opaque;
                }
                return Shape::Typed;
            };
            let is_commit = || kind == b'C' && message.body == b"COMMIT\0";
            let is_result = matches!(kind, b'C' | b'D' | b'E' | b'I');
            let starts = match *reply {
                Reply::None => is_commit() && hook.takes(|wanted| matches!(wanted, Wanted::Commit)),
                Reply::After(others) => others == 0 && is_result,
                Reply::Losing => false,
            };
            if starts {
                *reply = Reply::Losing;
                lost_from = Some(message.start);
            }
            // ReadyForQuery: the reply is over, and with it an implicit transaction.
            if kind == b'Z' {
                *replies_due = replies_due.saturating_sub(1);
                match *reply {
                    Reply::Losing => is_over = true,
                    Reply::After(others) => *reply = Reply::After(others.saturating_sub(1)),
                    Reply::None => {}
                }
            }
            Shape::Typed
        });
        match lost_from {
            Some(position) if is_over => {
                hook.dropped.fetch_add(1, Ordering::SeqCst);
                Seen::CutAt(position)
            }
            Some(position) => Seen::LoseFrom(position),
            None => Seen::Pass,
        }
    }
}

/// What comes next in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Bytes that cannot be read.
    Opaque,
    /// The one byte that answers a wish for encryption.
    OneByte,
    /// A length and a body.
    Startup,
    /// A kind, a length and a body.
    Typed,
}

/// The messages of one direction.
#[derive(Debug)]
struct Messages {
    shape: Shape,
    /// The message so far, without what is beyond the part that is kept.
    head: Vec<u8>,
    /// Bytes of the message so far.
    seen: usize,
}

/// A message that has just ended.
struct Message<'a> {
    kind: Option<u8>,
    body: &'a [u8],
    /// Where it starts in the chunk; 0 if it did so before.
    start: usize,
}

impl Messages {
    fn new(shape: Shape) -> Self {
        Self { shape, head: Vec::new(), seen: 0 }
    }

    /// Reads a chunk. Each message that ends in it is handed over, and what comes next is
    /// answered.
    fn follow(&mut self, chunk: &[u8], mut on_message: impl FnMut(Message<'_>) -> Shape) {
        let mut start = 0;
        for (position, byte) in chunk.iter().enumerate() {
            if self.shape == Shape::Opaque {
                return;
            }
            if self.head.len() < HEAD_BYTES_MAX {
                self.head.push(*byte);
            }
            self.seen += 1;
            let header = match self.shape {
                Shape::Opaque | Shape::OneByte => 0,
                Shape::Startup => 4,
                Shape::Typed => 5,
            };
            let length = if header == 0 { Some(1) } else { self.length(header) };
            if length.is_none_or(|length| self.seen < length) {
                continue;
            }
            let kind = (self.shape == Shape::Typed).then(|| self.head[0]);
            let body = &self.head[header.min(self.head.len())..];
            self.shape = on_message(Message { kind, body, start });
            self.head.clear();
            self.seen = 0;
            start = position + 1;
        }
    }

    /// The bytes of the whole message, once they are known. The length counts itself.
    fn length(&self, header: usize) -> Option<usize> {
        let length = self.head.get(header - 4..header)?.first_chunk()?;
        Some(header - 4 + usize::try_from(u32::from_be_bytes(*length)).ok()?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
