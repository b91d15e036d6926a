//! What was received and not read yet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Batch, Frame};
use crate::Error;

/// Frames on their way from the thread to the reader.
pub(super) struct Queue {
    state: Mutex<State>,
    bytes_max: usize,
    /// There are frames, or there is an end.
    arrived: Notify,
    /// There is room again.
    room: Notify,
}

#[derive(Default)]
struct State {
    frames: Batch,
    bytes: usize,
    /// The thread waits for room.
    is_full: bool,
    end: Option<End>,
}

/// How the stream has ended.
pub(super) enum End {
    /// The error was not told yet.
    Failed(Error),
    /// The error was told.
    Told,
    /// As it was asked to.
    Stopped,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (arrived, room) = (Notify::new(), Notify::new());
        Self { state: Mutex::default(), bytes_max, arrived, room }
    }

    /// All frames, or how the stream has ended. Waits for either.
    pub(super) async fn take(&self) -> Result<Batch, End> {
        loop {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }

    fn try_take(&self) -> Option<Result<Batch, End>> {
        let mut state = self.lock();
        if state.frames.is_empty() {
            return match state.end.take()? {
                End::Stopped => {
                    state.end = Some(End::Stopped);
                    Some(Err(End::Stopped))
                }
                end => {
                    state.end = Some(End::Told);
                    Some(Err(end))
                }
            };
        }
        state.bytes = 0;
        let batch = std::mem::take(&mut state.frames);
        if std::mem::take(&mut state.is_full) {
            self.room.notify_one();
        }
        Some(Ok(batch))
    }

    /// Adds frames.
    pub(super) fn add<T>(&self, adding: impl FnOnce(&mut Adder<'_>) -> T) -> T {
        let mut adder = Adder { state: self.lock(), bytes_max: self.bytes_max };
        let result = adding(&mut adder);
        let has_frames = !adder.state.frames.is_empty();
        drop(adder);
        if has_frames {
            self.arrived.notify_one();
        }
        result
    }

    /// Ends it, unless it has an end already.
    pub(super) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.arrived.notify_one();
    }

    /// Waits until there is room again.
    pub(super) async fn room(&self) {
        self.room.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue while frames are added.
pub(super) struct Adder<'q> {
    state: MutexGuard<'q, State>,
    bytes_max: usize,
}

impl Adder<'_> {
    /// Whether there is room for a message. If not, there will be a notice when there is.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.state.bytes == 0 || self.state.bytes + bytes <= self.bytes_max;
        self.state.is_full = !has_room;
        has_room
    }

    pub(super) fn push(&mut self, frame: Frame, bytes: usize) {
        // Of several keepalives in a row only the last one says anything new.
        if matches!(frame, Frame::Keepalive { .. })
            && let Some(last @ Frame::Keepalive { .. }) = self.state.frames.last_mut()
        {
            *last = frame;
            return;
        }
        self.state.bytes += bytes + size_of::<Frame>();
        self.state.frames.push(frame);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Lsn;

    fn data(number: u64) -> Frame {
        Frame::XLogData {
            wal_start: Lsn(number),
            wal_end: Lsn(number),
            sent_at_us: 0,
            data: Bytes::new(),
        }
    }

    fn keepalive(number: u64) -> Frame {
        Frame::Keepalive { wal_end: Lsn(number) }
    }

    fn is_full(queue: &Queue, bytes: usize) -> bool {
        queue.add(|adder| !adder.has_room(bytes))
    }

    async fn taken(queue: &Queue) -> Batch {
        queue.take().await.unwrap_or_else(|_| panic!("the queue has not ended"))
    }

    #[tokio::test]
    async fn it_is_bounded_in_bytes() {
        let queue = Queue::new(1000);
        assert!(!is_full(&queue, 5000), "a large one passes alone");
        queue.add(|adder| adder.push(data(1), 500));
        assert!(!is_full(&queue, 300));
        assert!(is_full(&queue, 500));
        assert_eq!(taken(&queue).await, [data(1)]);
        tokio::time::timeout(std::time::Duration::from_secs(10), queue.room()).await.unwrap();
        assert!(!is_full(&queue, 500));
    }

    #[tokio::test]
    async fn keepalives_do_not_pile_up_and_do_not_overtake() {
        let queue = Queue::new(1000);
        let frames = [keepalive(1), keepalive(2), data(3), keepalive(4), keepalive(5), data(6)];
        for frame in frames {
            queue.add(|adder| adder.push(frame, 10));
        }
        assert_eq!(taken(&queue).await, [keepalive(2), data(3), keepalive(5), data(6)]);
    }

    #[tokio::test]
    async fn what_came_before_the_end_is_read_before_it() {
        let queue = Queue::new(1000);
        queue.add(|adder| adder.push(data(1), 10));
        queue.end(End::Failed(Error::Ended));
        queue.end(End::Stopped);
        assert_eq!(taken(&queue).await, [data(1)]);
        assert!(matches!(queue.take().await, Err(End::Failed(Error::Ended))));
        assert!(matches!(queue.take().await, Err(End::Told)));
        assert!(matches!(queue.take().await, Err(End::Told)));
    }
}
