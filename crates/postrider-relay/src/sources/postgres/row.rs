//! Makes an event of a row, or says why that cannot be done.
//!
//! A row comes from a statement or from the log. A table that is not of our making has columns of
//! other types, so each value is read by the type that it came with. Nothing here fails or panics; what is not an event becomes
//! [`Undecodable`], with its key if that much can be read. Reasons name the column and never
//! quote what is in it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use postrider::{Event, Key};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use super::log::Stored;
use super::queries::HEADERS_BYTES_MAX;
use crate::source::Undecodable;

/// Seconds from 1970 to 2000, from where PostgreSQL counts.
pub(super) const EPOCH_2000_SECS: i64 = 946_684_800;
/// The years that every format can say, in microseconds from 2000.
const YEAR_1: i64 = -63_082_281_600_000_000;
const YEAR_10000: i64 = 252_455_616_000_000_000;

/// The longest id of a row that has something else than a UUID. Longer ones would not fit into the
/// index of ids of what is set aside.
pub(super) const ID_BYTES_MAX: usize = 1024;
/// A number with none before it: what is read begins behind a number. No sequence gives it.
pub(super) const SEQ_UNREADABLE: i64 = i64::MIN;

/// A row as it was read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) seq: i64,
    /// What the row has as its id, if that is not the event's.
    pub(super) id: Option<Box<str>>,
    pub(super) event: Result<Arc<Event>, Undecodable>,
    /// What is no event, if the log has it and the table may not.
    pub(super) raw: Option<Box<Stored>>,
}

impl Decoded {
    /// Its key, if that can be read.
    pub(super) fn key(&self) -> Option<&Key> {
        match &self.event {
            Ok(event) => Some(event.key()),
            Err(bad) => bad.key.as_ref(),
        }
    }
}

/// The columns that [`queries`](super::queries) selects of an event, in order.
pub(super) mod column {
    pub(in super::super) const SEQ: usize = 0;
    pub(super) const ID: usize = 1;
    pub(super) const AGGREGATE_TYPE: usize = 2;
    pub(super) const AGGREGATE_ID: usize = 3;
    pub(super) const EVENT_TYPE: usize = 4;
    pub(super) const EVENT_VERSION: usize = 5;
    pub(super) const PAYLOAD: usize = 6;
    pub(super) const CONTENT_TYPE: usize = 7;
    pub(super) const HEADERS: usize = 8;
    pub(super) const TOPIC: usize = 9;
    pub(super) const OCCURRED_AT: usize = 10;
    pub(super) const DELIVER_AFTER: usize = 11;
    /// Lengths of the columns that have a limit, if one is too long.
    pub(super) const LENGTHS: usize = 12;
    /// The first column behind those of the event.
    pub(in super::super) const MORE: usize = 13;
}

/// The columns that have a limit, in the order of `LENGTHS`, and that limit.
pub(super) const LIMITS: [(&str, usize); 7] = [
    ("aggregate_type", NAME_BYTES_MAX),
    ("aggregate_id", AGGREGATE_ID_BYTES_MAX),
    ("event_type", NAME_BYTES_MAX),
    ("content_type", NAME_BYTES_MAX),
    ("topic", NAME_BYTES_MAX),
    ("headers", HEADERS_BYTES_MAX),
    ("payload", PAYLOAD_BYTES_MAX),
];

/// How the rows of an outbox are read.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    /// If events have something else than a UUID, one is derived from it and this: the same
    /// whenever it is read.
    pub(super) derives_ids: Option<String>,
}

/// The columns of an event, wherever they come from.
pub(super) trait Columns {
    /// A column, unless it is NULL or too long.
    fn value(&self, index: usize) -> Option<Value<'_>>;

    /// How many bytes one of [`LIMITS`] has, if that is too many.
    fn length(&self, limit: usize) -> Option<usize>;

    /// Whether a column is not NULL, but was too long to be kept.
    fn is_missing(&self, _index: usize) -> bool {
        false
    }
}

/// A row of a statement that selects the columns of an event.
struct Selected<'r> {
    row: &'r Row,
    lengths: Option<Vec<Option<i32>>>,
}

impl Columns for Selected<'_> {
    fn value(&self, index: usize) -> Option<Value<'_>> {
        self.row.try_get(index).ok().flatten()
    }

    /// A column that is too long comes as NULL, with its length beside it.
    fn length(&self, limit: usize) -> Option<usize> {
        let length = self.lengths.as_ref()?.get(limit).copied().flatten()?;
        usize::try_from(length).ok()
    }
}

impl Decoder {
    /// Reads a row of a statement that selects the columns of an event.
    pub(super) fn decode(&self, row: &Row) -> Result<Decoded, tokio_postgres::Error> {
        let seq = row.try_get(column::SEQ)?;
        let columns = Selected { row, lengths: row.try_get(column::LENGTHS)? };
        let event = self.event_of(seq, &columns);
        Ok(Decoded { seq, id: self.row_id(&columns, event.is_ok()), event, raw: None })
    }

    /// Reads the event of a row, given its number.
    pub(super) fn event_of(
        &self,
        seq: i64,
        columns: &impl Columns,
    ) -> Result<Arc<Event>, Undecodable> {
        if seq == SEQ_UNREADABLE {
            let reason = format!("seq is {seq}, the smallest number there is");
            let key = Fields { columns, decoder: self }.key().ok();
            return Err(Undecodable { key, reason });
        }
        self.event(columns)
    }

    /// Reads an event.
    fn event(&self, columns: &impl Columns) -> Result<Arc<Event>, Undecodable> {
        let fields = Fields { columns, decoder: self };
        let event = fields.event().map(Arc::new);
        event.map_err(|reason| Undecodable { key: fields.key().ok(), reason })
    }

    /// What a row has as its id, as a text, if that cannot be told from its event.
    pub(super) fn row_id(&self, columns: &impl Columns, is_event: bool) -> Option<Box<str>> {
        if is_event && self.derives_ids.is_none() {
            return None;
        }
        let value = columns.value(column::ID)?;
        let text = value.text("id").ok()?;
        // A text of a fixed length is compared without what fills it up.
        let text = if value.ty == Type::BPCHAR { text.trim_end_matches(' ') } else { &text };
        // What is too long was cut, and is not kept: the row is known by its number.
        (text.len() <= ID_BYTES_MAX).then(|| text.into())
    }

    /// The id of an event, given what a row has for it.
    pub(super) fn id(&self, value: Value<'_>) -> Result<Uuid, String> {
        let not_a_uuid = || "id is not a UUID".to_owned();
        let name = match value.ty {
            Type::UUID => return Uuid::from_slice(value.bytes).map_err(|_| not_a_uuid()),
            Type::INT2 | Type::INT4 | Type::INT8 => {
                value.integer().map(|number| number.to_string())
            }
            _ => {
                let text = value.text("id")?;
                if text.trim_end_matches(' ').len() > ID_BYTES_MAX {
                    return Err(format!("id has more than {ID_BYTES_MAX} bytes"));
                }
                if let Ok(id) = Uuid::parse_str(&text) {
                    return Ok(id);
                }
                Some(text.into_owned())
            }
        };
        let (table, name) = self.derives_ids.as_ref().zip(name).ok_or_else(not_a_uuid)?;
        let name = format!("postrider:{table}:{name}");
        Ok(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
    }
}

/// A value of any type, as it came over the wire.
#[derive(Clone, Debug)]
pub(super) struct Value<'r> {
    pub(super) ty: Type,
    pub(super) bytes: &'r [u8],
}

impl<'r> FromSql<'r> for Value<'r> {
    fn from_sql(ty: &Type, bytes: &'r [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self { ty: ty.clone(), bytes })
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl<'r> Value<'r> {
    /// The bytes of a text. What holds JSON in binary has a version before it.
    pub(super) fn content(&self) -> &'r [u8] {
        match (&self.ty, self.bytes) {
            (&Type::JSONB, [1, text @ ..]) => text,
            (_, bytes) => bytes,
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Cow<'r, str>, String> {
        if let Some(number) = self.integer() {
            return Ok(number.to_string().into());
        }
        if let (&Type::UUID, Ok(id)) = (&self.ty, Uuid::from_slice(self.bytes)) {
            return Ok(id.to_string().into());
        }
        let text = std::str::from_utf8(self.content());
        text.map(Cow::Borrowed).map_err(|_| format!("{name} is not UTF-8"))
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match self.ty {
            Type::INT2 => Some(i16::from_be_bytes(self.bytes.try_into().ok()?).into()),
            Type::INT4 => Some(i32::from_be_bytes(self.bytes.try_into().ok()?).into()),
            Type::INT8 => Some(i64::from_be_bytes(self.bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// A time of PostgreSQL: microseconds from 2000.
    pub(super) fn micros(&self) -> Option<i64> {
        let is_time = matches!(self.ty, Type::TIMESTAMP | Type::TIMESTAMPTZ);
        self.bytes.try_into().ok().filter(|_| is_time).map(i64::from_be_bytes)
    }

    fn time(&self) -> Option<SystemTime> {
        let micros = self.micros()?;
        (YEAR_1..YEAR_10000).contains(&micros).then(|| {
            let since_1970 = i128::from(micros) + i128::from(EPOCH_2000_SECS) * 1_000_000;
            let distance = u64::try_from(since_1970.unsigned_abs()).unwrap_or(u64::MAX);
            let distance = Duration::from_micros(distance);
            match since_1970 >= 0 {
                true => SystemTime::UNIX_EPOCH + distance,
                false => SystemTime::UNIX_EPOCH - distance,
            }
        })
    }
}

struct Fields<'r, C> {
    columns: &'r C,
    decoder: &'r Decoder,
}

impl<'r, C: Columns> Fields<'r, C> {
    fn value(&self, index: usize) -> Option<Value<'r>> {
        self.columns.value(index)
    }

    fn required(&self, index: usize, name: &str) -> Result<Value<'r>, String> {
        self.value(index).ok_or_else(|| match self.columns.is_missing(index) {
            true if self.too_long(name).is_none() => format!("{name} is too long"),
            _ => self.missing(name),
        })
    }

    fn missing(&self, name: &str) -> String {
        match self.too_long(name) {
            Some((bytes, max)) => format!("{name} has {bytes} bytes, the limit is {max}"),
            None => format!("{name} is NULL"),
        }
    }

    /// How many bytes a column has that has too many, and how many it may have.
    fn too_long(&self, name: &str) -> Option<(usize, usize)> {
        let limit = LIMITS.iter().position(|(limited, _)| *limited == name)?;
        Some((self.columns.length(limit)?, LIMITS[limit].1))
    }

    fn text(&self, index: usize, name: &str) -> Result<Cow<'r, str>, String> {
        self.required(index, name)?.text(name)
    }

    fn key(&self) -> Result<Key, String> {
        let aggregate_type = self.text(column::AGGREGATE_TYPE, "aggregate_type")?;
        let aggregate_id = self.text(column::AGGREGATE_ID, "aggregate_id")?;
        for (name, value) in [("aggregate_type", &aggregate_type), ("aggregate_id", &aggregate_id)]
        {
            if value.is_empty() {
                return Err(format!("{name} is empty"));
            }
        }
        Ok(Key {
            aggregate_type: aggregate_type.into_owned(),
            aggregate_id: aggregate_id.into_owned(),
        })
    }

    fn event(&self) -> Result<Event, String> {
        let Key { aggregate_type, aggregate_id } = self.key()?;
        let id = self.decoder.id(self.required(column::ID, "id")?)?;
        let event_type = self.text(column::EVENT_TYPE, "event_type")?;
        let content_type = self.text(column::CONTENT_TYPE, "content_type")?;
        if content_type.is_empty() {
            return Err("content_type is empty".to_owned());
        }
        let payload = Bytes::copy_from_slice(self.required(column::PAYLOAD, "payload")?.content());
        let mut event = Event::builder(aggregate_type, aggregate_id, event_type)
            .id(id)
            .version(self.version()?)
            .payload(payload, content_type)
            .headers(self.headers()?)
            .occurred_at(self.time(column::OCCURRED_AT, "occurred_at")?);
        match self.value(column::TOPIC) {
            Some(topic) => event = event.topic(topic.text("topic")?),
            None if self.too_long("topic").is_some() => return Err(self.missing("topic")),
            None => {}
        }
        if self.value(column::DELIVER_AFTER).is_some() {
            event = event.deliver_after(self.time(column::DELIVER_AFTER, "deliver_after")?);
        }
        event.build().map_err(|invalid| invalid.to_string())
    }

    fn version(&self) -> Result<u32, String> {
        let version = self.value(column::EVENT_VERSION).and_then(|value| value.integer());
        version
            .and_then(|version| u32::try_from(version).ok())
            .filter(|version| *version > 0)
            .ok_or_else(|| format!("event_version is not a whole number from 1 to {}", u32::MAX))
    }

    fn headers(&self) -> Result<BTreeMap<String, String>, String> {
        let json = self.required(column::HEADERS, "headers")?.content();
        if json == b"{}" {
            return Ok(BTreeMap::new());
        }
        serde_json::from_slice(json).map_err(|err| {
            // What serde says may quote a value.
            format!("headers is not a JSON object of strings, at column {}", err.column())
        })
    }

    fn time(&self, index: usize, name: &str) -> Result<SystemTime, String> {
        let value = self.required(index, name)?;
        value.time().ok_or_else(|| format!("{name} is not a time in the years 1 to 9999"))
    }
}
