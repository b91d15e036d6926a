//! The thread that has the socket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{io, mem};

use bytes::{BufMut as _, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::queue::End;
use super::{CONFIRM_PAUSE, Frame, STOP_MAX, Shared};
use crate::reader::{Malformed, Reader};
use crate::wire::{Wire, body, server_error};
use crate::{Error, Lsn};

/// After a read of fewer bytes than this there is a pause.
const SMALL_READ_BYTES: usize = 64 << 10;
/// Long enough for many messages to come, short enough for the window of the socket not to fill.
const PAUSE: Duration = Duration::from_micros(500);
/// The same if what comes is late anyway. Here the window is to fill: see [`super`].
const LATE_PAUSE: Duration = Duration::from_millis(7);
/// What was committed longer before it was sent is late.
const LATE_US: i64 = 100_000;
/// A message of the plugin that begins a transaction: its kind, a position, and when it was
/// committed.
const BEGIN: u8 = b'B';
const COMMIT_TIME: std::ops::Range<usize> = 9..17;
/// After a status was sent, a request for another one waits so long.
const REPLY_PAUSE: Duration = Duration::from_millis(10);
/// Requests that follow each other more closely are those of a server that shuts down.
const REQUEST_GAP_MAX: Duration = Duration::from_millis(500);
/// So long it may wait for what is not confirmed.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
/// The year 2000, with which the server's clock begins.
const EPOCH: Duration = Duration::from_secs(946_684_800);

/// Starts the thread.
pub(super) fn spawn(
    wire: Wire,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
    status_interval: Duration,
) -> io::Result<()> {
    let run = move || {
        let over = Over(Arc::clone(&shared));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = match runtime {
            Err(err) => Err(err.into()),
            Ok(runtime) => runtime.block_on(Worker::new(wire, shared, stop, status_interval).run()),
        };
        // The connection is closed before anybody is told.
        over.0.queue.end(ended.map_or_else(End::Failed, |()| End::Stopped));
    };
    thread::Builder::new().name("replication".to_owned()).spawn(run).map(drop)
}

/// Nobody waits for a thread that has panicked.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.queue.end(End::Failed(Error::Ended));
    }
}

struct Worker {
    wire: Wire,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
    status_interval: Duration,
    status_sent_at: Instant,
    /// How far we have received.
    received: Lsn,
    /// The confirmed position that was sent.
    confirmed: Lsn,
    /// Something was received since the last status was sent.
    has_heard: bool,
    /// The server wants to hear from us.
    must_reply: bool,
    requests: Option<Requests>,
    /// When the last transaction that was received was committed, in microseconds since 2000.
    committed_at_us: Option<i64>,
    /// When the last message was sent, by the same clock.
    sent_at_us: i64,
}

/// Requests for a reply with nothing else between them.
#[derive(Clone, Copy)]
struct Requests {
    first: Instant,
    last: Instant,
}

/// What became of the messages that were received.
#[derive(Default)]
struct HandedOver {
    /// There was a message of the plugin.
    any_data: bool,
    /// The rest has to wait for room.
    is_full: bool,
}

impl Worker {
    fn new(
        wire: Wire,
        shared: Arc<Shared>,
        stop: watch::Receiver<bool>,
        status_interval: Duration,
    ) -> Self {
        Self {
            wire,
            shared,
            stop,
            status_interval,
            status_sent_at: Instant::now(),
            received: Lsn::ZERO,
            confirmed: Lsn::ZERO,
            has_heard: true,
            must_reply: false,
            requests: None,
            committed_at_us: None,
            sent_at_us: 0,
        }
    }

    async fn run(mut self) -> Result<(), Error> {
        self.wire.adopt()?;
        let given_up = given_up(self.stop.clone());
        tokio::select! {
            biased;
            () = given_up => {
                let message = "the server has not ended the stream in time";
                Err(Error::Io(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
            ended = self.stream() => ended,
        }
    }

    async fn stream(&mut self) -> Result<(), Error> {
        let mut is_small = false;
        let late_pause = if self.wire.is_loopback() { LATE_PAUSE } else { PAUSE };
        loop {
            let handed_over = self.hand_over()?;
            if Instant::now() >= self.status_due() {
                self.send_status().await?;
            }
            if mem::take(&mut is_small) && handed_over.any_data {
                thread::sleep(if self.is_late() { late_pause } else { PAUSE });
            }
            let status_due = self.status_due();
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => break,
                () = self.shared.confirming.notified() => {}
                () = sleep_until(status_due) => {}
                () = self.shared.queue.room(), if handed_over.is_full => {}
                received = self.wire.fill(), if !handed_over.is_full => {
                    is_small = received? < SMALL_READ_BYTES;
                }
            }
        }
        self.finish().await
    }

    /// Gives the reader what was received, as far as there is room.
    fn hand_over(&mut self) -> Result<HandedOver, Error> {
        let shared = Arc::clone(&self.shared);
        shared.queue.add(|queue| {
            let mut handed_over = HandedOver::default();
            while let Some(length) = self.wire.complete()? {
                if !queue.has_room(length) {
                    handed_over.is_full = true;
                    break;
                }
                self.has_heard = true;
                let message = self.wire.take(length);
                match message[0] {
                    b'd' => {
                        let received = Received::read(body(&message))?;
                        if received.reply_requested {
                            self.requested(Instant::now())?;
                        }
                        if let Frame::XLogData { sent_at_us, data, .. } = &received.frame {
                            handed_over.any_data = true;
                            self.requests = None;
                            self.sent_at_us = *sent_at_us;
                            self.committed_at_us = committed_at_us(data).or(self.committed_at_us);
                        }
                        self.received = self.received.max(received.position);
                        queue.push(received.frame, length);
                    }
                    b'E' => return Err(server_error(&message)),
                    // The server leaves the stream, or simply ends the command when it shuts down.
                    b'c' | b'C' => return Err(Error::Ended),
                    b'N' | b'S' => {}
                    tag => return Err(Error::unexpected(tag)),
                }
            }
            Ok(handed_over)
        })
    }

    /// Whether what came last was committed long before it was sent: a few milliseconds more do
    /// not matter, and many wait behind it.
    fn is_late(&self) -> bool {
        let late_us = self.committed_at_us.map(|at| self.sent_at_us.saturating_sub(at));
        late_us.is_some_and(|us| us > LATE_US)
    }

    /// The server wants a reply.
    ///
    /// When it shuts down it asks again and again, until all it has sent is confirmed. That can
    /// take for ever, if the reader cannot get rid of it; so the stream ends instead, and what is
    /// not confirmed comes again.
    fn requested(&mut self, now: Instant) -> Result<(), Error> {
        self.must_reply = true;
        let requests = match self.requests {
            Some(requests) if now - requests.last < REQUEST_GAP_MAX => {
                Requests { last: now, ..requests }
            }
            _ => Requests { first: now, last: now },
        };
        self.requests = Some(requests);
        if now - requests.first > SHUTDOWN_MAX { Err(Error::Ended) } else { Ok(()) }
    }

    fn status_due(&self) -> Instant {
        let has_moved = self.shared.confirmed.load(Ordering::Acquire) > self.confirmed.0;
        let pause = if self.must_reply {
            REPLY_PAUSE
        } else if has_moved {
            CONFIRM_PAUSE
        } else {
            self.status_interval
        };
        self.status_sent_at + pause.min(self.status_interval)
    }

    async fn send_status(&mut self) -> Result<(), Error> {
        let status = self.status();
        Ok(self.wire.send(&status).await?)
    }

    /// How far we are. Asks for an answer if nothing was heard since the last one.
    fn status(&mut self) -> BytesMut {
        // In this order, so that what is confirmed from here on is told.
        self.shared.is_told.store(false, Ordering::Release);
        self.confirmed = Lsn(self.shared.confirmed.load(Ordering::Acquire));
        self.status_sent_at = Instant::now();
        self.must_reply = false;
        let is_silent = !mem::take(&mut self.has_heard);
        let now = SystemTime::now().duration_since(UNIX_EPOCH + EPOCH).unwrap_or_default();
        let mut status = BytesMut::with_capacity(64);
        status.put_u8(b'd');
        status.put_u32(4 + 1 + 4 * 8 + 1);
        status.put_u8(b'r');
        // Written, flushed, applied.
        status.put_u64(self.received.max(self.confirmed).0);
        status.put_u64(self.confirmed.0);
        status.put_u64(self.confirmed.0);
        status.put_u64(now.as_micros() as u64);
        status.put_u8(u8::from(is_silent));
        status
    }

    /// Ends the stream and waits until the server has ended it, too.
    async fn finish(&mut self) -> Result<(), Error> {
        let mut farewell = self.status();
        frontend::copy_done(&mut farewell);
        self.wire.send(&farewell).await?;
        loop {
            let message = self.wire.message().await?;
            match message[0] {
                b'Z' => break,
                b'E' => return Err(server_error(&message)),
                // What was under way, and the answers to our end.
                _ => {}
            }
        }
        let mut terminate = BytesMut::new();
        frontend::terminate(&mut terminate);
        // The server has let go of the slot, whatever becomes of this.
        let _ = self.wire.send(&terminate).await;
        Ok(())
    }
}

/// Waits until nobody is there any more, or the time to stop is over.
async fn given_up(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_ok() {
        // It is never set again, so that only the end of the other side ends this.
        drop(timeout(STOP_MAX, stop.changed()).await);
    }
}

/// Waits until it is asked to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is there any more, which ends the thread in another place.
        std::future::pending::<()>().await;
    }
}

/// When a transaction was committed, if this is its beginning.
fn committed_at_us(data: &[u8]) -> Option<i64> {
    let at = data.get(COMMIT_TIME).filter(|_| data[0] == BEGIN)?;
    at.try_into().ok().map(i64::from_be_bytes)
}

/// A message of the stream.
struct Received {
    frame: Frame,
    position: Lsn,
    reply_requested: bool,
}

impl Received {
    fn read(body: Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        match reader.u8()? {
            b'w' => {
                let (wal_start, wal_end) = (Lsn(reader.u64()?), Lsn(reader.u64()?));
                let sent_at_us = reader.i64()?;
                let data = reader.left().clone();
                let position = wal_start.max(wal_end);
                let frame = Frame::XLogData { wal_start, wal_end, sent_at_us, data };
                Ok(Self { frame, position, reply_requested: false })
            }
            b'k' => {
                let wal_end = Lsn(reader.u64()?);
                reader.i64()?;
                let reply_requested = reader.u8()? == 1;
                reader.end()?;
                let frame = Frame::Keepalive { wal_end };
                Ok(Self { frame, position: wal_end, reply_requested })
            }
            _ => Err(Malformed.into()),
        }
    }
}
