//! The stream of a slot.
//!
//! # Design
//!
//! - **A thread of its own** does all that concerns the socket, on a runtime of its own. So the
//!   server is told that we live, and how far we are, whatever the reader of the stream does, and
//!   whatever else its runtime is busy with.
//! - **A queue** that is bounded in bytes is between the thread and the reader. While it is full
//!   the thread does not read from the socket, but goes on telling the server how far we are.
//! - **A pause** follows each small read. The server sends each message by itself: to read each of
//!   them by itself, too, takes most of the time of both processes. What comes during the pause is
//!   read at once after it. What was read before is handed over before, so that nothing waits that
//!   comes after silence. The pauses are shorter than the runtime's clock can measure; this is
//!   another reason for the thread.
//! - **A longer pause** follows if what comes is late anyway, and the server is on the same machine.
//!   There each message is a packet, which takes the server more time than to decode it. But once
//!   the window of the socket is full, the server's kernel puts messages together. So the receive
//!   buffer is small, and the pause long enough for the window to be full for most of it. On
//!   other networks, which have a delay, that would leave them unused.
//! - **The confirmed position** is sent soon, but not more often than [`CONFIRM_PAUSE`].
//! - **The end.** The thread ends when the reader stops or is dropped, when the server ends the
//!   stream and when the connection fails; what was received before an error is read before it. A
//!   server that shuts down would wait until all it has sent is confirmed; the thread ends the
//!   stream after a few seconds of that.

mod queue;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use self::queue::{End, Queue};
use crate::wire::Wire;
use crate::{Error, Flow, Lsn};

/// After a confirmed position was sent, the next one waits so long.
const CONFIRM_PAUSE: Duration = Duration::from_millis(100);
/// How long the server has to end the stream when it is stopped.
const STOP_MAX: Duration = Duration::from_secs(5);

/// A part of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message of the output plugin.
    XLogData {
        /// Where in the log it comes from. Between transactions this goes back and forth.
        wal_start: Lsn,
        /// How far the server has read the log.
        wal_end: Lsn,
        /// When the server sent it, by its clock, in microseconds since the year 2000, UTC.
        sent_at_us: i64,
        /// The message.
        data: Bytes,
    },
    /// The server lives.
    Keepalive {
        /// How far the server has read the log. All that was committed before has been sent. It
        /// can be confirmed if every transaction that came is taken care of, and none is half
        /// here.
        wal_end: Lsn,
    },
}

/// Frames that follow each other; at least one.
pub type Batch = Vec<Frame>;

/// The stream of a slot. Dropped, it ends without sending the last confirmed position.
///
/// From a server that lives there is at least one frame in twice the status interval, unless it
/// is busy with one large transaction.
pub struct Replication {
    shared: Arc<Shared>,
    /// True to stop; dropped to end at once.
    stop: watch::Sender<bool>,
}

/// What the reader and the thread have in common.
struct Shared {
    queue: Queue,
    confirmed: AtomicU64,
    /// The thread was told that the confirmed position has moved.
    is_told: AtomicBool,
    /// It has moved.
    confirming: Notify,
}

impl Replication {
    /// Goes on with a connection on which the server has started a stream.
    pub(crate) fn start(wire: Wire, flow: Flow) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Queue::new(flow.buffer_bytes),
            confirmed: AtomicU64::new(0),
            is_told: AtomicBool::new(false),
            confirming: Notify::new(),
        });
        let (stop, stopping) = watch::channel(false);
        worker::spawn(wire, Arc::clone(&shared), stopping, flow.status_interval)?;
        Ok(Self { shared, stop })
    }

    /// All that was received since the last call; waits if there is nothing.
    ///
    /// An error is told once, after all that came before it; from then on it is `None`. Nothing is
    /// lost if this is given up. It is for one reader.
    pub async fn next(&self) -> Result<Option<Batch>, Error> {
        match self.shared.queue.take().await {
            Ok(batch) => Ok(Some(batch)),
            Err(End::Failed(error)) => Err(error),
            Err(End::Stopped | End::Told) => Ok(None),
        }
    }

    /// Everything before this position is taken care of: the server need not send it again, and
    /// will not. It never goes back.
    pub fn confirm(&self, lsn: Lsn) {
        let before = self.shared.confirmed.fetch_max(lsn.0, Ordering::AcqRel);
        if before < lsn.0 && !self.shared.is_told.swap(true, Ordering::AcqRel) {
            self.shared.confirming.notify_one();
        }
    }

    /// Sends the last confirmed position, ends the stream and waits until the server has let go of
    /// the slot, at most 5 s. What was received and not read is dropped: it comes again.
    ///
    /// A server that is in the middle of a large transaction does not end the stream in time. The
    /// slot has the confirmed position even then, as long as the connection is fine.
    pub async fn stop(self) -> Result<(), Error> {
        self.stop.send_replace(true);
        loop {
            match self.shared.queue.take().await {
                Ok(_) => {}
                Err(End::Stopped) => return Ok(()),
                Err(End::Failed(error)) => return Err(error),
                Err(End::Told) => return Err(Error::Ended),
            }
        }
    }
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let confirmed = Lsn(self.shared.confirmed.load(Ordering::Relaxed));
        f.debug_struct("Replication").field("confirmed", &confirmed).finish_non_exhaustive()
    }
}
