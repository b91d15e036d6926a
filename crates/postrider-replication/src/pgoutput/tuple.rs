//! The columns of a row.

use std::fmt;

use bytes::Bytes;

use super::DecodeError;
use crate::cut::TOO_LONG;
use crate::reader::Reader;

/// A row. Its columns are read while they are asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct Tuple {
    count: u16,
    /// The columns, which are known to be well formed.
    data: Bytes,
}

impl Tuple {
    pub(super) fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = reader.u16()?;
        let left = reader.left();
        let mut length = 0;
        for _ in 0..count {
            length += Stored::read(&left[length..])?.length();
        }
        Ok(Self { count, data: reader.bytes(length)? })
    }

    /// How many columns it has.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether it has no columns, as a row of a table without any.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns, in the order of the table's [`Relation`](super::Relation).
    pub fn values(&self) -> Values<'_> {
        Values { data: &self.data, offset: 0 }
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

impl<'t> IntoIterator for &'t Tuple {
    type Item = Value;
    type IntoIter = Values<'t>;

    fn into_iter(self) -> Values<'t> {
        self.values()
    }
}

/// What a column holds. The bytes are a slice of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Null.
    Null,
    /// A large value that was not changed and is not repeated.
    Unchanged,
    /// As the type is written.
    Text(Bytes),
    /// As the type is sent in binary.
    Binary(Bytes),
    /// It has so many bytes, more than [`Flow::value_bytes_max`](crate::Flow::value_bytes_max),
    /// and was not kept.
    TooLong(u32),
}

/// The columns of a [`Tuple`].
#[derive(Clone, Debug)]
pub struct Values<'t> {
    data: &'t Bytes,
    offset: usize,
}

impl Iterator for Values<'_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        // The row was read through when it was made, so only its end is an error here.
        let stored = Stored::read(&self.data[self.offset..]).ok()?;
        let end = self.offset + stored.length();
        let content = (self.offset + HEADER_BYTES).min(end)..end;
        self.offset = end;
        Some(match stored {
            Stored::Null => Value::Null,
            Stored::Unchanged => Value::Unchanged,
            Stored::TooLong(bytes) => Value::TooLong(bytes),
            Stored::Text(_) => Value::Text(self.data.slice(content)),
            Stored::Binary(_) => Value::Binary(self.data.slice(content)),
        })
    }
}

/// What stands before the bytes of a column: its kind and its length.
const HEADER_BYTES: usize = 1 + 4;

/// A column as it stands in a message, with the length of its content.
enum Stored {
    Null,
    Unchanged,
    Text(usize),
    Binary(usize),
    /// Its content is not here.
    TooLong(u32),
}

impl Stored {
    /// The one at the start.
    fn read(data: &[u8]) -> Result<Self, DecodeError> {
        let (kind, rest) = data.split_first().ok_or(DecodeError::Length)?;
        let length = || {
            let (length, rest) = rest.split_first_chunk().ok_or(DecodeError::Length)?;
            let length = u32::from_be_bytes(*length) as usize;
            if length > rest.len() { Err(DecodeError::Length) } else { Ok(length) }
        };
        match kind {
            b'n' => Ok(Self::Null),
            b'u' => Ok(Self::Unchanged),
            b't' => Ok(Self::Text(length()?)),
            b'b' => Ok(Self::Binary(length()?)),
            &TOO_LONG => {
                let (length, _) = rest.split_first_chunk().ok_or(DecodeError::Length)?;
                Ok(Self::TooLong(u32::from_be_bytes(*length)))
            }
            kind => Err(DecodeError::UnknownColumn(*kind)),
        }
    }

    /// How many bytes it takes in all.
    fn length(&self) -> usize {
        match self {
            Self::Null | Self::Unchanged => 1,
            Self::TooLong(_) => HEADER_BYTES,
            Self::Text(length) | Self::Binary(length) => HEADER_BYTES + length,
        }
    }
}
