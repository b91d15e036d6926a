//! Makes events of what the log says: of rows that were inserted.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use postrider::Event;
use postrider_replication::pgoutput::{Relation, Tuple, Value as Sent};
use tokio_postgres::types::Type;

use crate::sources::postgres::read::Read;
use crate::sources::postgres::row::{
    Columns, Decoded, Decoder, EPOCH_2000_SECS, ID_BYTES_MAX, LIMITS, Value,
};
use crate::sources::postgres::table::Table;

/// Our names, first those of an event in the order in which `row` reads them, and whether there
/// is nothing to put in its place.
const COLUMNS: [(&str, bool); 15] = [
    ("seq", true),
    ("id", true),
    ("aggregate_type", true),
    ("aggregate_id", true),
    ("event_type", true),
    ("event_version", false),
    ("payload", true),
    ("content_type", false),
    ("headers", false),
    ("topic", false),
    ("occurred_at", false),
    ("deliver_after", false),
    ("created_at", false),
    ("published_at", false),
    ("xid", true),
];
/// Those of them that are names.
const NAMES: [&str; 5] = ["aggregate_id", "aggregate_type", "content_type", "event_type", "topic"];
const SEQ: usize = 0;
const DELIVER_AFTER: usize = 11;
const PUBLISHED_AT: usize = 13;
const XID: usize = 14;

/// Its names for the columns that are read from the log.
pub(in super::super) fn columns(table: &Table) -> Vec<&str> {
    let has = COLUMNS.iter().filter(|(name, _)| table.has(name));
    has.map(|(name, _)| table.theirs(name)).collect()
}

/// Where the columns of a table are in a row of the log.
#[derive(Debug)]
pub(super) struct Mapping {
    /// For each column of the row, which of ours it is, and its type.
    columns: Vec<Option<(usize, Type)>>,
    /// Of ours, those that are the same column as one before: which, and that one.
    same: Vec<(usize, usize)>,
    /// What stands for columns that the row does not have.
    instead: Vec<(usize, Field)>,
}

impl Mapping {
    /// Finds our columns in a table as the log has it. Should one be missing, the table was
    /// changed since: its name.
    pub(super) fn new(table: &Table, relation: &Relation) -> Result<Self, &'static str> {
        let mut mapping = Self {
            columns: vec![None; relation.columns.len()],
            same: Vec::new(),
            instead: Vec::new(),
        };
        for (ours, (name, is_required)) in COLUMNS.into_iter().enumerate() {
            let theirs = table.theirs(name);
            let found = relation.columns.iter().position(|column| column.name == theirs);
            match found {
                Some(index) if mapping.columns[index].is_some() => {
                    let before = mapping.columns[index].as_ref().map(|(ours, _)| *ours);
                    mapping.same.extend(before.map(|before| (ours, before)));
                }
                Some(index) => {
                    let ty = Type::from_oid(relation.columns[index].type_oid)
                        .or_else(|| table.ty(name).cloned())
                        .unwrap_or(Type::UNKNOWN);
                    // Of texts of a fixed length, only names are cast when the table is read.
                    let is_kept = ty == Type::BPCHAR && !NAMES.contains(&name);
                    mapping.columns[index] = Some((ours, if is_kept { Type::TEXT } else { ty }));
                }
                None if is_required || table.has(name) => return Err(name),
                None => {
                    mapping.instead.extend(Field::instead_of(name).map(|field| (ours, field)));
                }
            }
        }
        Ok(mapping)
    }

    pub(super) fn row(&self, tuple: &Tuple) -> LogRow {
        let mut row = LogRow::default();
        for (index, field) in &self.instead {
            row.0[*index] = Some(field.clone());
        }
        for (sent, column) in tuple.values().zip(&self.columns) {
            let Some((index, ty)) = column else { continue };
            row.0[*index] = match sent {
                Sent::Null | Sent::Unchanged => None,
                Sent::Text(bytes) => Some(Field::new(Type::TEXT, bytes)),
                Sent::Binary(bytes) if *ty == Type::BPCHAR => Some(Field::unpadded(bytes)),
                Sent::Binary(bytes) => Some(Field::new(ty.clone(), bytes)),
                Sent::TooLong(bytes) => Some(Field::too_long(bytes as usize)),
            };
        }
        for (index, before) in &self.same {
            row.0[*index] = row.0[*before].clone();
        }
        row
    }
}

/// What is in a column.
#[derive(Clone, Debug)]
struct Field {
    ty: Type,
    bytes: Bytes,
    /// How many bytes it has, if they are too many to be kept.
    too_long: Option<usize>,
}

impl Field {
    fn new(ty: Type, bytes: Bytes) -> Self {
        Self { ty, bytes, too_long: None }
    }

    fn too_long(bytes: usize) -> Self {
        Self { too_long: Some(bytes), ..Self::new(Type::UNKNOWN, Bytes::new()) }
    }

    fn text(text: impl Into<String>) -> Self {
        Self::new(Type::TEXT, Bytes::from(text.into()))
    }

    /// A text of a fixed length, as a cast to text answers it.
    fn unpadded(bytes: Bytes) -> Self {
        let length = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
        Self::new(Type::TEXT, bytes.slice(..length))
    }

    fn integer(number: i64) -> Self {
        Self::new(Type::INT8, Bytes::copy_from_slice(&number.to_be_bytes()))
    }

    /// Microseconds since 1970.
    fn time(micros: i64) -> Self {
        let since_2000 = micros.saturating_sub(EPOCH_2000_SECS * 1_000_000);
        Self::new(Type::TIMESTAMPTZ, Bytes::copy_from_slice(&since_2000.to_be_bytes()))
    }

    /// What stands for a column that a table does not have: the same as in
    /// [`table`](crate::sources::postgres::table).
    fn instead_of(name: &str) -> Option<Self> {
        match name {
            "content_type" => Some(Self::text("application/json")),
            "event_version" => Some(Self::integer(1)),
            "headers" => Some(Self::text("{}")),
            "occurred_at" => Some(Self::time(0)),
            _ => None,
        }
    }

    fn value(&self) -> Value<'_> {
        Value { ty: self.ty.clone(), bytes: &self.bytes }
    }

    /// How many bytes its content has.
    fn length(&self) -> usize {
        self.too_long.unwrap_or_else(|| self.value().content().len())
    }
}

/// A row of the log, column by column.
#[derive(Debug, Default)]
pub(in super::super) struct LogRow([Option<Field>; COLUMNS.len()]);

impl Columns for LogRow {
    fn value(&self, index: usize) -> Option<Value<'_>> {
        let field = self.0.get(index)?.as_ref().filter(|field| field.too_long.is_none())?;
        let (name, _) = COLUMNS[index];
        let limit = LIMITS.iter().find(|(limited, _)| *limited == name);
        limit.is_none_or(|(_, bytes_max)| field.length() <= *bytes_max).then(|| field.value())
    }

    fn length(&self, limit: usize) -> Option<usize> {
        let (limited, bytes_max) = LIMITS[limit];
        let index = COLUMNS.iter().position(|(name, _)| *name == limited)?;
        let length = self.0[index].as_ref()?.length();
        (length > bytes_max).then_some(length)
    }

    fn is_missing(&self, index: usize) -> bool {
        self.0.get(index).and_then(Option::as_ref).is_some_and(|field| field.too_long.is_some())
    }
}

/// A row of the log that was read.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) read: Read,
    /// The transaction, as the row in the table has it.
    pub(super) xid: Option<u64>,
}

impl LogRow {
    /// Whether it is for a pipeline of these aggregate types.
    pub(super) fn is_for(&self, types: Option<&[String]>) -> bool {
        let is_published = self.0[PUBLISHED_AT].is_some();
        let matches = types.is_none_or(|types| {
            let aggregate_type = self.text("aggregate_type");
            aggregate_type.is_some_and(|aggregate_type| types.contains(&aggregate_type))
        });
        !is_published && matches
    }

    /// Makes an event of it. `None` if it has no number: then the log is not that of an outbox.
    pub(super) fn read(&self, decoder: &Decoder, sent_at_us: i64) -> Option<Logged> {
        let seq = self.0[SEQ].as_ref()?.value().integer()?;
        let deliver_after = self.0[DELIVER_AFTER].as_ref().and_then(|at| at.value().micros());
        // Neither of the infinite times is waited for.
        let deliver_after = deliver_after.filter(|at| ![i64::MIN, i64::MAX].contains(at));
        let delay = deliver_after.and_then(|at| u64::try_from(at.saturating_sub(sent_at_us)).ok());
        let event = decoder.event_of(seq, self);
        let raw = event.is_err().then(|| Box::new(self.stored()));
        let delay = delay.filter(|micros| *micros > 0).map(Duration::from_micros);
        let id = decoder.row_id(self, event.is_ok());
        let read = Read { decoded: Decoded { seq, id, event, raw }, delay };
        Some(Logged { read, xid: self.xid() })
    }

    /// The transaction, as the row in the table has it.
    pub(super) fn xid(&self) -> Option<u64> {
        let xid = self.0[XID].as_ref()?.bytes.as_ref().try_into().ok();
        xid.map(u64::from_be_bytes)
    }

    fn stored(&self) -> Stored {
        let field = |name: &str| {
            let index = COLUMNS.iter().position(|(column, _)| *column == name)?;
            self.0[index].as_ref()
        };
        let integer = |name: &str| field(name).and_then(|field| field.value().integer());
        let time = |name: &str| {
            let micros = field(name)?.value().micros()?;
            let since_1970 = micros.checked_add(EPOCH_2000_SECS * 1_000_000)?;
            let since_1970 = Duration::from_micros(u64::try_from(since_1970).ok()?);
            SystemTime::UNIX_EPOCH.checked_add(since_1970)
        };
        Stored {
            id: self.text("id").filter(|id| id.len() <= ID_BYTES_MAX),
            aggregate_type: self.text("aggregate_type"),
            aggregate_id: self.text("aggregate_id"),
            event_type: self.text("event_type"),
            event_version: integer("event_version"),
            payload: field("payload")
                .filter(|field| field.too_long.is_none())
                .map(|field| field.value().content().to_vec()),
            content_type: self.text("content_type"),
            headers: self.text("headers"),
            topic: self.text("topic"),
            occurred_at: time("occurred_at"),
            deliver_after: time("deliver_after"),
        }
    }

    /// A column, if it has a text.
    pub(in super::super) fn text(&self, name: &str) -> Option<String> {
        let index = COLUMNS.iter().position(|(column, _)| *column == name)?;
        let field = self.0[index].as_ref().filter(|field| field.too_long.is_none())?;
        let text = field.value().text(name).ok()?;
        Some(text.into_owned())
    }
}

/// What is set aside of an event that is in no table, column by column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Stored {
    pub(in super::super) id: Option<String>,
    pub(in super::super) aggregate_type: Option<String>,
    pub(in super::super) aggregate_id: Option<String>,
    pub(in super::super) event_type: Option<String>,
    pub(in super::super) event_version: Option<i64>,
    pub(in super::super) payload: Option<Vec<u8>>,
    pub(in super::super) content_type: Option<String>,
    pub(in super::super) headers: Option<String>,
    pub(in super::super) topic: Option<String>,
    pub(in super::super) occurred_at: Option<SystemTime>,
    pub(in super::super) deliver_after: Option<SystemTime>,
}

impl Stored {
    pub(in super::super) fn of(event: &Event) -> Self {
        let headers = serde_json::to_string(event.headers());
        let text = |text: &str| Some(text.to_owned());
        Self {
            id: text(&event.id().to_string()),
            aggregate_type: text(&event.key().aggregate_type),
            aggregate_id: text(&event.key().aggregate_id),
            event_type: text(event.event_type()),
            event_version: Some(event.event_version().into()),
            payload: Some(event.payload().to_vec()),
            content_type: text(event.content_type()),
            headers: Some(headers.expect("a map of strings is JSON")),
            topic: event.topic().map(str::to_owned),
            occurred_at: Some(event.occurred_at()),
            deliver_after: event.deliver_after(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with these values instead of its own.
    fn row(others: &[(&str, Option<Field>)]) -> LogRow {
        let id = Field::text("0192f4c2-7f0e-7c3a-8f00-000000000001");
        let mut row = LogRow::default();
        let mut set = |name: &str, field: Option<Field>| {
            let index = COLUMNS.iter().position(|(column, _)| *column == name);
            row.0[index.expect("it is a column")] = field;
        };
        set("seq", Some(Field::integer(7)));
        set("id", Some(id));
        set("aggregate_type", Some(Field::text("order")));
        set("aggregate_id", Some(Field::text("o-1")));
        set("event_type", Some(Field::text("OrderPaid")));
        set("event_version", Some(Field::integer(2)));
        set("payload", Some(Field::new(Type::BYTEA, Bytes::from_static(b"{}"))));
        set("content_type", Some(Field::text("application/json")));
        set("headers", Some(Field::text(r#"{"a":"b"}"#)));
        set("occurred_at", Some(Field::time(1_700_000_000_000_000)));
        set("deliver_after", Some(Field::time(946_684_800_000_500)));
        set("xid", Some(Field::new(Type::XID8, Bytes::copy_from_slice(&741_u64.to_be_bytes()))));
        for (name, field) in others {
            set(name, field.clone());
        }
        row
    }

    #[test]
    fn of_a_payload_that_is_too_long_the_length_is_told() {
        let row = row(&[("payload", Some(Field::too_long(300_000_000)))]);
        let Logged { read, .. } = row.read(&Decoder { derives_ids: None }, 100).unwrap();
        let bad = read.decoded.event.unwrap_err();
        assert_eq!(bad.reason, "payload has 300000000 bytes, the limit is 1048576");
        assert_eq!(bad.key.unwrap().aggregate_id, "o-1");
        let stored = read.decoded.raw.unwrap();
        assert_eq!((stored.payload, stored.event_type.as_deref()), (None, Some("OrderPaid")));
    }

    #[test]
    fn a_row_is_an_event() {
        let row = row(&[]);
        let Logged { read, xid } = row.read(&Decoder { derives_ids: None }, 100).unwrap();
        assert_eq!((read.decoded.seq, xid), (7, Some(741)));
        assert_eq!(read.delay, Some(Duration::from_micros(400)));
        let event = read.decoded.event.unwrap();
        assert_eq!(event.payload().as_ref(), b"{}");
        assert_eq!((event.event_version(), event.topic()), (2, None));
        assert_eq!(event.headers().get("a").map(String::as_str), Some("b"));
        let occurred_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(event.occurred_at(), occurred_at);
        assert!(row.is_for(None) && row.is_for(Some(&["order".to_owned()])));
        assert!(!row.is_for(Some(&["invoice".to_owned()])));
    }

    #[test]
    fn what_is_not_an_event_is_kept_as_it_is() {
        let payload = Field::new(Type::BYTEA, Bytes::from_static(b"x"));
        let row = row(&[("event_type", Some(Field::text(""))), ("payload", Some(payload))]);
        let Logged { read, .. } = row.read(&Decoder { derives_ids: None }, 0).unwrap();
        assert!(read.decoded.event.is_err());
        let raw = read.decoded.raw.unwrap();
        assert_eq!(
            (raw.payload.as_deref(), raw.event_type.as_deref()),
            (Some(&b"x"[..]), Some(""))
        );
    }
}
