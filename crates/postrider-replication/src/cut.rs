//! Messages of the stream that are longer than may be held.
//!
//! While such a message is received, each of its values that is too long is passed over: what is
//! kept of a column is its length, and of a logical message its beginning. So whoever reads the
//! stream learns which row it is and why its value is not there, and no more memory is taken than
//! for a message without it.
//!
//! What is kept has the form of a message of `pgoutput`, with two kinds that the server does not
//! have: a column [`TOO_LONG`], with its length and nothing behind that; and a message
//! [`CUT_LOGICAL`], which is a logical message with its whole length and the beginning of its
//! content. [`pgoutput`](crate::pgoutput) reads both.

#[cfg(test)]
mod tests;

use bytes::{Buf as _, Bytes, BytesMut};

use crate::Error;
use crate::reader::Malformed;
use crate::wire::{HEADER_BYTES, STREAMED};

/// The kind of a column that is too long.
pub(crate) const TOO_LONG: u8 = b'x';
/// The kind of a logical message of which the end is missing.
pub(crate) const CUT_LOGICAL: u8 = b'm';

/// Before a message of the plugin stand `w`, two positions and a time; then its kind.
const KIND: usize = HEADER_BYTES + 1 + 3 * 8;
const HEAD_BYTES: usize = KIND + 1;
/// A value this long is always kept.
const SMALL_BYTES: usize = 1 << 10;
/// Of one row this many times the longest value is kept, and small values.
const LONG_VALUES_MAX: usize = 4;
/// A longer prefix of a logical message is taken for none.
const PREFIX_BYTES_MAX: usize = 1 << 10;

/// Cuts messages that are too long, one at a time.
pub(crate) struct Cutter {
    value_bytes_max: usize,
    /// What comes is within a block of a transaction in progress, where messages have one number
    /// more.
    in_block: bool,
    cut: Option<Cut>,
}

/// A message while it is cut.
struct Cut {
    kept: BytesMut,
    /// How many bytes of the message are to come.
    left: usize,
    kind: u8,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    /// What stands before every message.
    Head,
    /// The number of the table.
    Relation,
    /// What stands before a row.
    Tuple,
    /// So many columns.
    Columns { count: u16, is_last: bool },
    /// So many bytes of a column to keep, or to pass over, and the columns behind it.
    Value { bytes: usize, is_kept: bool, count: u16, is_last: bool },
    /// The flags and the position of a logical message.
    Logical,
    /// Its prefix, which begins there in what is kept, unless it is too long.
    Prefix { start: usize, is_kept: bool },
    /// Its length.
    Length,
    /// So many bytes to keep, and then so many to pass over.
    Content { kept: usize, rest: usize },
    /// Nothing more may come.
    End,
}

impl Cutter {
    pub(crate) fn new(value_bytes_max: usize) -> Self {
        Self { value_bytes_max, in_block: false, cut: None }
    }

    pub(crate) fn is_cutting(&self) -> bool {
        self.cut.is_some()
    }

    /// Whether a message of this length can have a value that is too long.
    pub(crate) fn must_cut(&self, length: usize) -> bool {
        length > self.value_bytes_max
    }

    /// Begins with a message of this length, of which nothing was taken.
    pub(crate) fn begin(&mut self, length: usize) {
        let kept = BytesMut::with_capacity(SMALL_BYTES);
        self.cut = Some(Cut { kept, left: length, kind: 0, step: Step::Head });
    }

    /// Takes what was received of the message. Answers how much was kept of it, once it is
    /// complete.
    pub(crate) fn feed(&mut self, incoming: &mut BytesMut) -> Result<Option<usize>, Error> {
        let Self { value_bytes_max, in_block, cut } = self;
        let Some(cut) = cut else { return Ok(None) };
        loop {
            if cut.left == 0 && matches!(cut.step, Step::End) {
                return Ok(Some(cut.kept.len()));
            }
            if !cut.step(incoming, *value_bytes_max, *in_block)? {
                return Ok(None);
            }
        }
    }

    /// What was kept of a message that is complete.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        self.cut.take().map(|cut| cut.kept.freeze())
    }

    /// Notes a message that was taken whole.
    pub(crate) fn note(&mut self, message: &[u8]) {
        match message.get(KIND) {
            Some(b'S') if is_plugins(message) => self.in_block = true,
            Some(b'E') if is_plugins(message) => self.in_block = false,
            _ => {}
        }
    }
}

/// Whether it is a message of the plugin, given the beginning of a message.
fn is_plugins(message: &[u8]) -> bool {
    message[0] == STREAMED && message[HEADER_BYTES] == b'w'
}

impl Cut {
    /// Goes on by one step; false if that takes more than was received.
    fn step(
        &mut self,
        incoming: &mut BytesMut,
        value_bytes_max: usize,
        in_block: bool,
    ) -> Result<bool, Error> {
        let step = self.step;
        self.step = match step {
            Step::Head => {
                let xid_bytes = if in_block { 4 } else { 0 };
                let Some(head) = self.peek::<HEAD_BYTES>(incoming)? else { return Ok(false) };
                self.kind = head[KIND];
                if !is_plugins(&head) || !b"DIMU".contains(&self.kind) {
                    return Err(Error::too_long(self.kind, self.left, value_bytes_max));
                }
                if !self.keep(incoming, HEAD_BYTES + xid_bytes)? {
                    return Ok(false);
                }
                if self.kind == b'M' {
                    self.kept[KIND] = CUT_LOGICAL;
                    Step::Logical
                } else {
                    Step::Relation
                }
            }
            Step::Relation if self.keep(incoming, 4)? => Step::Tuple,
            Step::Tuple => {
                let Some([kind, count @ ..]) = self.peek::<3>(incoming)? else { return Ok(false) };
                self.keep(incoming, 3)?;
                let is_last = self.kind != b'U' || kind == b'N';
                Step::Columns { count: u16::from_be_bytes(count), is_last }
            }
            Step::Columns { count: 0, is_last: true } => Step::End,
            Step::Columns { count: 0, is_last: false } => Step::Tuple,
            Step::Columns { count, is_last } => {
                let Some([kind]) = self.peek::<1>(incoming)? else { return Ok(false) };
                if kind != b't' && kind != b'b' {
                    self.keep(incoming, 1)?;
                    Step::Columns { count: count - 1, is_last }
                } else {
                    let Some([_, bytes @ ..]) = self.peek::<5>(incoming)? else {
                        return Ok(false);
                    };
                    let bytes = u32::from_be_bytes(bytes) as usize;
                    let row_bytes_max = value_bytes_max.saturating_mul(LONG_VALUES_MAX);
                    let is_kept = bytes <= SMALL_BYTES
                        || bytes <= value_bytes_max && self.kept.len() + bytes <= row_bytes_max;
                    let at = self.kept.len();
                    self.keep(incoming, 5)?;
                    if !is_kept {
                        self.kept[at] = TOO_LONG;
                    }
                    Step::Value { bytes, is_kept, count: count - 1, is_last }
                }
            }
            Step::Value { bytes: 0, count, is_last, .. } => Step::Columns { count, is_last },
            Step::Value { bytes, is_kept, count, is_last } => {
                let taken = self.take_some(incoming, bytes, is_kept)?;
                if taken == 0 {
                    return Ok(false);
                }
                Step::Value { bytes: bytes - taken, is_kept, count, is_last }
            }
            Step::Logical if self.keep(incoming, 1 + 8)? => {
                Step::Prefix { start: self.kept.len(), is_kept: true }
            }
            Step::Prefix { start, is_kept } => {
                let received = &incoming[..incoming.len().min(self.left)];
                let end = received.iter().position(|byte| *byte == 0);
                let bytes = end.unwrap_or(received.len());
                let is_kept = is_kept && self.kept.len() - start + bytes <= PREFIX_BYTES_MAX;
                let taken = self.take_some(incoming, bytes, is_kept)?;
                if !is_kept {
                    self.kept.truncate(start);
                }
                match end {
                    Some(_) if self.keep(incoming, 1)? => Step::Length,
                    _ if self.left == 0 => return Err(Malformed.into()),
                    _ if taken == 0 => return Ok(false),
                    _ => Step::Prefix { start, is_kept },
                }
            }
            Step::Length => {
                let Some(bytes) = self.peek::<4>(incoming)? else { return Ok(false) };
                self.keep(incoming, 4)?;
                let bytes = u32::from_be_bytes(bytes) as usize;
                let kept = bytes.min(value_bytes_max);
                Step::Content { kept, rest: bytes - kept }
            }
            Step::Content { kept: 0, rest: 0 } => Step::End,
            Step::Content { kept, rest } => {
                let bytes = if kept > 0 { kept } else { rest };
                let taken = self.take_some(incoming, bytes, kept > 0)?;
                if taken == 0 {
                    return Ok(false);
                }
                match kept {
                    0 => Step::Content { kept, rest: rest - taken },
                    _ => Step::Content { kept: kept - taken, rest },
                }
            }
            Step::End => return Err(Malformed.into()),
            Step::Relation | Step::Logical => return Ok(false),
        };
        Ok(true)
    }

    /// The next bytes, if they were received.
    fn peek<const N: usize>(&self, incoming: &BytesMut) -> Result<Option<[u8; N]>, Error> {
        if self.left < N {
            return Err(Malformed.into());
        }
        Ok(incoming.first_chunk().copied())
    }

    /// Keeps so many bytes; false if they were not all received.
    fn keep(&mut self, incoming: &mut BytesMut, bytes: usize) -> Result<bool, Error> {
        if self.left < bytes {
            return Err(Malformed.into());
        }
        if incoming.len() < bytes {
            return Ok(false);
        }
        self.take_some(incoming, bytes, true)?;
        Ok(true)
    }

    /// Takes up to so many bytes, as far as they were received; answers how many.
    fn take_some(
        &mut self,
        incoming: &mut BytesMut,
        bytes: usize,
        is_kept: bool,
    ) -> Result<usize, Error> {
        if self.left < bytes {
            return Err(Malformed.into());
        }
        let bytes = bytes.min(incoming.len());
        if is_kept {
            self.kept.extend_from_slice(&incoming[..bytes]);
        }
        incoming.advance(bytes);
        self.left -= bytes;
        Ok(bytes)
    }
}
