//! Makes an event of a row, or says why that cannot be done.
//!
//! The bytes come from outside: any program can write to the table, and SQLite stores any kind
//! of value in any column. So nothing here fails or panics; what is not an event becomes
//! [`Undecodable`], with its key if that much can be read. Reasons name the column and never
//! quote what is in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use postrider::{Event, Key, timestamp};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use uuid::Uuid;

use crate::source::Undecodable;

/// A row as it was read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) seq: i64,
    pub(super) event: Result<Arc<Event>, Undecodable>,
    pub(super) attempts: u32,
}

/// The columns, in the order of [`queries`](super::queries).
mod column {
    pub(super) const SEQ: usize = 0;
    pub(super) const ID: usize = 1;
    pub(super) const AGGREGATE_TYPE: usize = 2;
    pub(super) const AGGREGATE_ID: usize = 3;
    pub(super) const EVENT_TYPE: usize = 4;
    pub(super) const EVENT_VERSION: usize = 5;
    pub(super) const PAYLOAD: usize = 6;
    pub(super) const PAYLOAD_BYTES: usize = 7;
    pub(super) const CONTENT_TYPE: usize = 8;
    pub(super) const HEADERS: usize = 9;
    pub(super) const TOPIC: usize = 10;
    pub(super) const OCCURRED_AT: usize = 11;
    pub(super) const DELIVER_AFTER: usize = 12;
    pub(super) const ATTEMPTS: usize = 13;
}

/// Reads a row. Fails only if the statement is not the right one.
pub(super) fn decode(row: &Row<'_>) -> rusqlite::Result<Decoded> {
    let seq = row.get(column::SEQ)?;
    let attempts = match row.get_ref(column::ATTEMPTS)? {
        ValueRef::Integer(attempts) => u32::try_from(attempts.max(0)).unwrap_or(u32::MAX),
        _ => 0,
    };
    let key = key(row);
    let event = match &key {
        Ok(key) => event(row, key).map(Arc::new),
        Err(reason) => Err(reason.clone()),
    };
    let event = event.map_err(|reason| Undecodable { key: key.ok(), reason });
    Ok(Decoded { seq, event, attempts })
}

fn key(row: &Row<'_>) -> Result<Key, String> {
    let aggregate_type = text(row, column::AGGREGATE_TYPE, "aggregate_type")?;
    let aggregate_id = text(row, column::AGGREGATE_ID, "aggregate_id")?;
    for (name, value) in [("aggregate_type", aggregate_type), ("aggregate_id", aggregate_id)] {
        if value.is_empty() {
            return Err(format!("{name} is empty"));
        }
    }
    Ok(Key { aggregate_type: aggregate_type.to_owned(), aggregate_id: aggregate_id.to_owned() })
}

fn event(row: &Row<'_>, key: &Key) -> Result<Event, String> {
    let id = Uuid::parse_str(text(row, column::ID, "id")?).map_err(|_| "id is not a UUID")?;
    let event_type = text(row, column::EVENT_TYPE, "event_type")?;
    let content_type = text(row, column::CONTENT_TYPE, "content_type")?;
    if content_type.is_empty() {
        return Err("content_type is empty".to_owned());
    }
    let mut event =
        Event::builder(key.aggregate_type.as_str(), key.aggregate_id.as_str(), event_type)
            .id(id)
            .version(version(row)?)
            .payload(payload(row)?, content_type)
            .headers(headers(text(row, column::HEADERS, "headers")?)?)
            .occurred_at(time(row, column::OCCURRED_AT, "occurred_at")?);
    if !is_null(row, column::TOPIC) {
        event = event.topic(text(row, column::TOPIC, "topic")?);
    }
    if !is_null(row, column::DELIVER_AFTER) {
        event = event.deliver_after(time(row, column::DELIVER_AFTER, "deliver_after")?);
    }
    event.build().map_err(|invalid| invalid.to_string())
}

fn value<'r>(row: &'r Row<'_>, index: usize) -> ValueRef<'r> {
    row.get_ref(index).unwrap_or(ValueRef::Null)
}

fn is_null(row: &Row<'_>, index: usize) -> bool {
    value(row, index) == ValueRef::Null
}

fn text<'r>(row: &'r Row<'_>, index: usize, name: &str) -> Result<&'r str, String> {
    match value(row, index) {
        ValueRef::Text(bytes) => {
            std::str::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8"))
        }
        ValueRef::Null => Err(format!("{name} is NULL")),
        // A column of text turns numbers into text, so this is the length of one too long.
        ValueRef::Integer(bytes) => Err(too_long(name, bytes)),
        ValueRef::Real(_) | ValueRef::Blob(_) => Err(format!("{name} is not text")),
    }
}

fn too_long(name: &str, bytes: i64) -> String {
    let bytes_max = match name {
        "aggregate_id" => AGGREGATE_ID_BYTES_MAX,
        "aggregate_type" | "content_type" | "event_type" | "topic" => NAME_BYTES_MAX,
        "payload" => PAYLOAD_BYTES_MAX,
        _ => return format!("{name} has {bytes} bytes, which is too long"),
    };
    format!("{name} has {bytes} bytes, the limit is {bytes_max}")
}

fn version(row: &Row<'_>) -> Result<u32, String> {
    match value(row, column::EVENT_VERSION) {
        ValueRef::Integer(version) => u32::try_from(version).ok().filter(|version| *version > 0),
        _ => None,
    }
    .ok_or_else(|| format!("event_version is not a whole number from 1 to {}", u32::MAX))
}

fn payload(row: &Row<'_>) -> Result<Bytes, String> {
    match (value(row, column::PAYLOAD), value(row, column::PAYLOAD_BYTES)) {
        (ValueRef::Blob(bytes) | ValueRef::Text(bytes), _) => Ok(Bytes::copy_from_slice(bytes)),
        (ValueRef::Null, ValueRef::Integer(bytes)) => Err(too_long("payload", bytes)),
        (ValueRef::Null, _) => Err("payload is NULL".to_owned()),
        _ => Err("payload is a number; write it as text or blob".to_owned()),
    }
}

fn headers(json: &str) -> Result<BTreeMap<String, String>, String> {
    if json == "{}" {
        return Ok(BTreeMap::new());
    }
    serde_json::from_str(json).map_err(|err| {
        // What serde says may quote a value.
        format!("headers is not a JSON object of strings, at column {}", err.column())
    })
}

fn time(row: &Row<'_>, index: usize, name: &str) -> Result<SystemTime, String> {
    timestamp::from_text(text(row, index, name)?)
        .map_err(|_| format!("{name} is not an RFC 3339 time such as 2026-01-31T23:59:59.123456Z"))
}
