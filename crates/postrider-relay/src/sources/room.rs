//! How much of a batch is still free.

use crate::source::BatchLimit;

/// Counts what was put into a batch against its limit.
#[derive(Debug)]
pub(super) struct Room {
    events_left: usize,
    bytes_left: usize,
    empty: bool,
}

impl Room {
    pub(super) fn new(limit: BatchLimit) -> Self {
        // A limit of nothing would never move: one event is always allowed.
        Self { events_left: limit.events.max(1), bytes_left: limit.bytes, empty: true }
    }

    /// The most events that can still be taken.
    pub(super) fn events(&self) -> usize {
        self.events_left
    }

    /// Whether nothing more can be taken.
    pub(super) fn is_full(&self) -> bool {
        self.events_left == 0 || (self.bytes_left == 0 && !self.empty)
    }

    /// Takes an event of this size if it fits. The first one always does.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        if self.is_full() || (bytes > self.bytes_left && !self.empty) {
            return false;
        }
        self.events_left -= 1;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.empty = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn room(events: usize, bytes: usize) -> Room {
        Room::new(BatchLimit { events, bytes, wait: Duration::ZERO })
    }

    #[test]
    fn the_first_event_always_fits_and_no_limit_is_passed() {
        let mut room_of_ten_bytes = room(5, 10);
        assert!(room_of_ten_bytes.take(100));
        assert!(!room_of_ten_bytes.take(1));

        let mut room_of_two = room(2, 10);
        assert!(room_of_two.take(4));
        assert!(!room_of_two.take(7));
        assert!(room_of_two.take(6));
        assert!(!room_of_two.take(0));

        assert!(room(0, 0).take(1));
    }
}
