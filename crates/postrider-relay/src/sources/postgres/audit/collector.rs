//! Makes transactions of what the log says, without keeping their rows.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use postrider_replication::pgoutput::{
    DecodeError, Message, Relation, Tuple, Value as Sent, decode,
};
use postrider_replication::{Frame, Lsn};
use tokio_postgres::types::Type;

use super::tables::Place;
use crate::audit::{Operation, Seen, Transaction, WrittenEvent, WrittenEvents};
use crate::sources::postgres::row::{Decoder, EPOCH_2000_SECS, Value};
use crate::sources::postgres::table::Table;

/// The prefix of the message with which an audit marks its end.
const END_PREFIX: &str = "postrider audit";
/// What is shown of a name or an id, in bytes.
const SHOWN_BYTES_MAX: usize = 255;
/// Our names for the columns that are shown of an event.
const COLUMNS: [&str; 4] = ["id", "aggregate_type", "aggregate_id", "event_type"];

/// How the events of an outbox are recognized.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Its names for [`COLUMNS`].
    pub(super) theirs: [String; 4],
    pub(super) decoder: Decoder,
}

impl Outbox {
    pub(super) fn of(table: &Table) -> Self {
        Self {
            theirs: COLUMNS.map(|name| table.theirs(name).to_owned()),
            decoder: Decoder { derives_ids: table.derives_ids() },
        }
    }
}

/// What was said so far.
#[derive(Debug)]
pub(super) struct Collector {
    /// Whose relation is which.
    places: HashMap<u32, Place>,
    outbox: Outbox,
    /// Whose end is waited for.
    run: String,
    /// Where [`COLUMNS`] are, by the number of a table.
    columns: HashMap<u32, [Option<usize>; 4]>,
    open: Option<Transaction>,
    /// The open one is the end.
    is_end: bool,
}

impl Collector {
    pub(super) fn new(places: HashMap<u32, Place>, outbox: Outbox, run: &str) -> Self {
        let run = run.to_owned();
        Self { places, outbox, run, columns: HashMap::new(), open: None, is_end: false }
    }

    /// Takes a part of the stream. Answers up to where all of the log is taken in, if that has
    /// moved.
    pub(super) fn take(
        &mut self,
        frame: Frame,
        seen: &mut Seen,
    ) -> Result<Option<Lsn>, DecodeError> {
        match frame {
            Frame::Keepalive { wal_end } => Ok(self.open.is_none().then_some(wal_end)),
            Frame::XLogData { data, .. } => Ok(self.message(decode(data, false)?, seen)),
        }
    }

    fn message(&mut self, message: Message, seen: &mut Seen) -> Option<Lsn> {
        match message {
            Message::Begin { final_lsn, commit_time_us, xid } => {
                self.open = Some(Transaction {
                    xid,
                    committed_at: time(commit_time_us),
                    lsn: final_lsn.to_string(),
                    is_replicated: false,
                    changes: Default::default(),
                    events: WrittenEvents::default(),
                });
            }
            Message::Origin { .. } => {
                if let Some(open) = &mut self.open {
                    open.is_replicated = true;
                }
            }
            Message::Relation(relation) => self.relation(&relation),
            Message::Insert { relation, new, .. } => {
                if self.places.get(&relation) == Some(&Place::Outbox) {
                    let event = self.event(relation, &new);
                    self.write(event);
                }
                self.change(relation, Operation::Insert);
            }
            Message::Update { relation, .. } => self.change(relation, Operation::Update),
            Message::Delete { relation, .. } => self.change(relation, Operation::Delete),
            Message::Truncate { relations, .. } => {
                relations.into_iter().for_each(|it| self.change(it, Operation::Truncate));
            }
            Message::Logical { transactional: true, prefix, content, .. }
                if prefix == END_PREFIX =>
            {
                self.is_end |= content.as_ref() == self.run.as_bytes();
            }
            Message::Commit { end_lsn, .. } => {
                let open = self.open.take();
                seen.transactions
                    .extend(open.filter(|it| it.events.count > 0 || !it.changes.is_empty()));
                seen.is_end |= std::mem::take(&mut self.is_end);
                return Some(end_lsn);
            }
            _ => {}
        }
        None
    }

    fn relation(&mut self, relation: &Relation) {
        if self.places.get(&relation.oid) != Some(&Place::Outbox) {
            return;
        }
        let place =
            |theirs: &String| relation.columns.iter().position(|column| column.name == *theirs);
        self.columns.insert(relation.oid, self.outbox.theirs.each_ref().map(place));
    }

    fn change(&mut self, relation: u32, operation: Operation) {
        if let (Some(Place::Table(index)), Some(open)) =
            (self.places.get(&relation), &mut self.open)
        {
            open.changes.entry(*index).or_default().add(operation);
        }
    }

    fn write(&mut self, event: WrittenEvent) {
        if let Some(open) = &mut self.open {
            open.events.add(event);
        }
    }

    /// What is shown of a row of the outbox.
    fn event(&self, relation: u32, row: &Tuple) -> WrittenEvent {
        let columns = self.columns.get(&relation).copied().unwrap_or_default();
        let mut texts: [Option<Bytes>; 4] = Default::default();
        for (index, value) in row.values().enumerate() {
            // One column may stand for two.
            for (text, _) in texts.iter_mut().zip(columns).filter(|(_, it)| *it == Some(index)) {
                if let Sent::Text(bytes) = &value {
                    *text = Some(bytes.clone());
                }
            }
        }
        let [id, rest @ ..] = texts;
        let id = id.and_then(|bytes| {
            let id = self.outbox.decoder.id(Value { ty: Type::TEXT, bytes: &bytes });
            id.ok().map(|id| id.to_string())
        });
        let text =
            |bytes: Option<Bytes>| shown(&String::from_utf8_lossy(&bytes.unwrap_or_default()));
        let [aggregate_type, aggregate_id, event_type] = rest.map(text);
        WrittenEvent { event_id: id.unwrap_or_default(), aggregate_type, aggregate_id, event_type }
    }
}

/// Cut to what is shown.
fn shown(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

/// From microseconds since the year 2000.
fn time(micros: i64) -> SystemTime {
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_2000_SECS.unsigned_abs());
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    time.unwrap_or(epoch)
}
