//! The messages of `pgoutput`, PostgreSQL's own output plugin, in versions 1 and 2 of its
//! protocol.
//!
//! Reading never panics, whatever the bytes are, and allocates next to nothing: a row stays where
//! it is in the input, and its columns are slices of it. As a slice keeps the memory of all that
//! was received with it, copy a small one that is kept for long.

#[cfg(test)]
mod tests;
mod tuple;

use bytes::Bytes;

pub use self::tuple::{Tuple, Value, Values};
use crate::Lsn;
use crate::cut::CUT_LOGICAL;
use crate::reader::{Malformed, Reader};

/// A column of a `Relation` takes this many bytes at least: flags, an empty name, type, modifier.
const COLUMN_BYTES_MIN: usize = 1 + 1 + 4 + 4;
const OID_BYTES: usize = 4;

/// One message.
///
/// `xid` is the transaction, or the subtransaction, that a message within a streamed block
/// belongs to; outside of one it is `None`. Times are microseconds since the year 2000, UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A transaction begins: all of it follows, up to its `Commit`.
    Begin {
        /// Where its commit record starts.
        final_lsn: Lsn,
        /// When it was committed.
        commit_time_us: i64,
        /// Its number.
        xid: u32,
    },
    /// The transaction is complete.
    Commit {
        /// Where its commit record starts.
        commit_lsn: Lsn,
        /// Where its commit record ends. Confirm exactly this once the transaction is taken care
        /// of: less brings it again, more can lose the next one.
        end_lsn: Lsn,
        /// When it was committed.
        commit_time_us: i64,
    },
    /// The transaction came to the server from elsewhere.
    Origin {
        /// Where it was committed there.
        lsn: Lsn,
        /// The name of the place.
        name: String,
    },
    /// What a table is like. It comes before the first change of the table, and again when it has
    /// changed.
    Relation(Relation),
    /// A type that is not built in. It comes before the `Relation` that uses it.
    Type {
        /// See [`Message`].
        xid: Option<u32>,
        /// Its number.
        oid: u32,
        /// Its schema; empty for `pg_catalog`.
        schema: String,
        /// Its name.
        name: String,
    },
    /// A row was inserted.
    Insert {
        /// See [`Message`].
        xid: Option<u32>,
        /// The number of the table.
        relation: u32,
        /// The row.
        new: Tuple,
    },
    /// A row was changed.
    Update {
        /// See [`Message`].
        xid: Option<u32>,
        /// The number of the table.
        relation: u32,
        /// What is known of the row as it was.
        old: Option<Old>,
        /// The row as it is now.
        new: Tuple,
    },
    /// A row was deleted.
    Delete {
        /// See [`Message`].
        xid: Option<u32>,
        /// The number of the table.
        relation: u32,
        /// What is known of the row as it was.
        old: Old,
    },
    /// Tables were emptied.
    Truncate {
        /// See [`Message`].
        xid: Option<u32>,
        /// The numbers of the tables.
        relations: Vec<u32>,
        /// With `CASCADE`.
        cascade: bool,
        /// With `RESTART IDENTITY`.
        restart_identity: bool,
    },
    /// What `pg_logical_emit_message` was given.
    Logical {
        /// See [`Message`].
        xid: Option<u32>,
        /// Part of a transaction. If not, it stands outside of every one, and comes even if the
        /// transaction that emitted it is rolled back.
        transactional: bool,
        /// Where it is in the log.
        lsn: Lsn,
        /// By whom it is meant to be read.
        prefix: String,
        /// What it says; the beginning, if it is longer than
        /// [`Flow::value_bytes_max`](crate::Flow::value_bytes_max).
        content: Bytes,
        /// How many bytes that is in whole.
        length: u32,
    },
    /// A block of a transaction that is still in progress begins.
    StreamStart {
        /// The number of the transaction.
        xid: u32,
        /// It is its first block.
        first: bool,
    },
    /// The block ends.
    StreamStop,
    /// A transaction that came in blocks was committed.
    StreamCommit {
        /// The number of the transaction.
        xid: u32,
        /// As in `Commit`.
        commit_lsn: Lsn,
        /// As in `Commit`.
        end_lsn: Lsn,
        /// As in `Commit`.
        commit_time_us: i64,
    },
    /// A transaction that came in blocks was rolled back, or a part of it.
    StreamAbort {
        /// The number of the transaction.
        xid: u32,
        /// What was rolled back: a subtransaction, or the transaction itself. Messages with
        /// another number remain.
        subxid: u32,
    },
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// See [`Message`].
    pub xid: Option<u32>,
    /// The number of the table.
    pub oid: u32,
    /// Its schema; empty for `pg_catalog`.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its `REPLICA IDENTITY`, as in `pg_class.relreplident`.
    pub replica_identity: u8,
    /// Its columns, in the order of a [`Tuple`].
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The number of its type.
    pub type_oid: u32,
    /// The modifier of its type, -1 for none.
    pub type_modifier: i32,
    /// It is a part of the replica identity.
    pub is_key: bool,
}

/// A row as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Old {
    /// The columns of the replica identity; the others are null.
    Key(Tuple),
    /// All columns.
    Row(Tuple),
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are too few or too many bytes.
    #[error("a message of pgoutput has too few or too many bytes")]
    Length,
    /// A name is not in UTF-8.
    #[error("a name in a message of pgoutput is not UTF-8")]
    Text,
    /// There is no such kind of column value.
    #[error("a column value in a message of pgoutput has the unknown kind {0:#04x}")]
    UnknownColumn(u8),
    /// There is no such kind of message in these versions of the protocol.
    #[error("a message of pgoutput has the unknown kind {0:#04x}")]
    UnknownMessage(u8),
    /// There is no such kind of row.
    #[error("a row in a message of pgoutput has the unknown kind {0:#04x}")]
    UnknownTuple(u8),
}

impl From<Malformed> for DecodeError {
    fn from(_: Malformed) -> Self {
        Self::Length
    }
}

/// Reads a message. Messages between `StreamStart` and `StreamStop` are written differently: the
/// caller says whether this is one.
pub fn decode(data: Bytes, in_stream: bool) -> Result<Message, DecodeError> {
    let mut reader = Reader::new(data);
    let kind = reader.u8()?;
    let has_xid =
        in_stream && matches!(kind, b'D' | b'I' | b'M' | b'R' | b'T' | b'U' | b'Y' | CUT_LOGICAL);
    let xid = if has_xid { Some(reader.u32()?) } else { None };
    let message = match kind {
        b'A' => Message::StreamAbort { xid: reader.u32()?, subxid: reader.u32()? },
        b'B' => Message::Begin {
            final_lsn: lsn(&mut reader)?,
            commit_time_us: reader.i64()?,
            xid: reader.u32()?,
        },
        b'C' => {
            let (commit_lsn, end_lsn, commit_time_us) = commit(&mut reader)?;
            Message::Commit { commit_lsn, end_lsn, commit_time_us }
        }
        b'D' => {
            let relation = reader.u32()?;
            let old = match reader.u8()? {
                b'K' => Old::Key(Tuple::read(&mut reader)?),
                b'O' => Old::Row(Tuple::read(&mut reader)?),
                kind => return Err(DecodeError::UnknownTuple(kind)),
            };
            Message::Delete { xid, relation, old }
        }
        b'E' => Message::StreamStop,
        b'I' => {
            let (relation, kind) = (reader.u32()?, reader.u8()?);
            Message::Insert { xid, relation, new: new_tuple(kind, &mut reader)? }
        }
        b'M' => logical(xid, &mut reader, false)?,
        CUT_LOGICAL => logical(xid, &mut reader, true)?,
        b'O' => Message::Origin { lsn: lsn(&mut reader)?, name: text(&mut reader)? },
        b'R' => Message::Relation(relation(xid, &mut reader)?),
        b'S' => Message::StreamStart { xid: reader.u32()?, first: reader.u8()? == 1 },
        b'T' => truncate(xid, &mut reader)?,
        b'U' => update(xid, &mut reader)?,
        b'Y' => Message::Type {
            xid,
            oid: reader.u32()?,
            schema: text(&mut reader)?,
            name: text(&mut reader)?,
        },
        b'c' => {
            let xid = reader.u32()?;
            let (commit_lsn, end_lsn, commit_time_us) = commit(&mut reader)?;
            Message::StreamCommit { xid, commit_lsn, end_lsn, commit_time_us }
        }
        kind => return Err(DecodeError::UnknownMessage(kind)),
    };
    reader.end()?;
    Ok(message)
}

fn commit(reader: &mut Reader) -> Result<(Lsn, Lsn, i64), DecodeError> {
    // Flags, of which there are none yet.
    reader.u8()?;
    Ok((lsn(reader)?, lsn(reader)?, reader.i64()?))
}

fn logical(xid: Option<u32>, reader: &mut Reader, is_cut: bool) -> Result<Message, DecodeError> {
    let transactional = reader.u8()? & 1 == 1;
    let lsn = lsn(reader)?;
    let prefix = text(reader)?;
    let length = reader.u32()?;
    let left = reader.left().len();
    let content = reader.bytes(if is_cut { left.min(length as usize) } else { length as usize })?;
    Ok(Message::Logical { xid, transactional, lsn, prefix, content, length })
}

fn relation(xid: Option<u32>, reader: &mut Reader) -> Result<Relation, DecodeError> {
    let oid = reader.u32()?;
    let schema = text(reader)?;
    let name = text(reader)?;
    let replica_identity = reader.u8()?;
    let count = usize::from(reader.u16()?);
    if count > reader.left().len() / COLUMN_BYTES_MIN {
        return Err(DecodeError::Length);
    }
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        columns.push(Column {
            is_key: reader.u8()? & 1 == 1,
            name: text(reader)?,
            type_oid: reader.u32()?,
            type_modifier: reader.i32()?,
        });
    }
    Ok(Relation { xid, oid, schema, name, replica_identity, columns })
}

fn truncate(xid: Option<u32>, reader: &mut Reader) -> Result<Message, DecodeError> {
    let count = reader.u32()? as usize;
    let flags = reader.u8()?;
    if count > reader.left().len() / OID_BYTES {
        return Err(DecodeError::Length);
    }
    let relations = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    let (cascade, restart_identity) = (flags & 1 == 1, flags & 2 == 2);
    Ok(Message::Truncate { xid, relations, cascade, restart_identity })
}

fn update(xid: Option<u32>, reader: &mut Reader) -> Result<Message, DecodeError> {
    let relation = reader.u32()?;
    let mut kind = reader.u8()?;
    let old = match kind {
        b'K' => Some(Old::Key(Tuple::read(reader)?)),
        b'O' => Some(Old::Row(Tuple::read(reader)?)),
        _ => None,
    };
    if old.is_some() {
        kind = reader.u8()?;
    }
    Ok(Message::Update { xid, relation, old, new: new_tuple(kind, reader)? })
}

fn new_tuple(kind: u8, reader: &mut Reader) -> Result<Tuple, DecodeError> {
    match kind {
        b'N' => Tuple::read(reader),
        kind => Err(DecodeError::UnknownTuple(kind)),
    }
}

fn lsn(reader: &mut Reader) -> Result<Lsn, DecodeError> {
    Ok(Lsn(reader.u64()?))
}

fn text(reader: &mut Reader) -> Result<String, DecodeError> {
    let bytes = reader.until_zero()?;
    let text = std::str::from_utf8(&bytes).map_err(|_| DecodeError::Text)?;
    Ok(text.to_owned())
}
