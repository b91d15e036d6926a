//! Care after crashes: finds the event that brings the relay down.
//!
//! An event that kills the process is never counted as failed, because nobody is left to count.
//! So the source counts starts that did not end in an orderly way. From the third one on, the
//! first window of events is handled *carefully*: one event at a time, and each only after the
//! attempt was written down ([`Verdict::Attempting`](crate::source::Verdict::Attempting)). The
//! event that kills the relay is then the one whose attempts go up from start to start, until it
//! is parked; all others are delivered.
//!
//! Crashes are forgotten once all early events (those of the first window) are settled.

/// So many crashes in a row make the next start careful.
pub const CAREFUL_AFTER: u32 = 3;

#[derive(Debug)]
pub(super) struct Care {
    careful: bool,
    /// Early events still to be read.
    early_left: usize,
    /// Early events read and not settled.
    early_unsettled: usize,
    survived: Survived,
    /// The event whose turn it is, and whether its attempt is written down.
    pub(super) turn: Option<Turn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survived {
    No,
    Yes,
    Told,
}

/// An event on its way to be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) entry: usize,
    pub(super) written: bool,
}

impl Care {
    pub(super) fn after(crashes: u32, window_events: usize) -> Self {
        Self {
            careful: crashes >= CAREFUL_AFTER,
            early_left: window_events,
            early_unsettled: 0,
            survived: Survived::No,
            turn: None,
        }
    }

    pub(super) fn is_careful(&self) -> bool {
        self.careful || self.turn.is_some()
    }

    /// Counts an event that was read. True if it is an early one.
    pub(super) fn admit(&mut self) -> bool {
        let early = self.early_left > 0;
        if early {
            self.early_left -= 1;
            self.early_unsettled += 1;
        }
        early
    }

    /// There is nothing more to read: whatever comes later is not early.
    pub(super) fn read_everything(&mut self) {
        self.early_left = 0;
        self.look();
    }

    pub(super) fn settled_one(&mut self) {
        self.early_unsettled -= 1;
        self.look();
    }

    fn look(&mut self) {
        let over = self.early_left == 0 && self.early_unsettled == 0;
        if over && self.survived == Survived::No {
            self.survived = Survived::Yes;
            self.careful = false;
        }
    }

    pub(super) fn take_survived(&mut self) -> bool {
        let survived = self.survived == Survived::Yes;
        if survived {
            self.survived = Survived::Told;
        }
        survived
    }

    /// The attempt of the event whose turn it is was written down.
    pub(super) fn written_down(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.written = true;
        }
    }
}
