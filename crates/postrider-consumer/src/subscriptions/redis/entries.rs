//! Entries of streams, in the answers of Redis.

use std::fmt;

use bytes::Bytes;
use redis::{ErrorKind, RedisError, Value};

use crate::subscription::Incoming;

/// The field that holds the body.
const PAYLOAD: &str = "payload";
/// The field that holds the key.
const KEY: &str = "postrider-key";

/// The id of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(pub(super) u64, pub(super) u64);

impl Id {
    /// Before all entries.
    pub(super) const MIN: Self = Self(0, 0);

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (milliseconds, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self(milliseconds.parse().ok()?, number.parse().ok()?))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// An entry as it was read.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) id: Id,
    /// None if it was removed from its stream.
    fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Entry {
    /// The message, as the decoder takes it; none if it was removed from its stream.
    pub(super) fn into_incoming(self, stream: &str) -> Option<Incoming> {
        let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let mut incoming = Incoming {
            topic: stream.to_owned(),
            place: format!("{stream}@{}", self.id),
            ..Incoming::default()
        };
        for (name, value) in self.fields? {
            if name == PAYLOAD.as_bytes() {
                incoming.body = Bytes::from(value);
                continue;
            }
            let (name, value) = (text(name), text(value));
            if name == KEY {
                incoming.key = Some(value.clone());
            }
            incoming.headers.push((name, value));
        }
        Some(incoming)
    }
}

/// The streams and their entries in the answer of `XREADGROUP`.
pub(super) fn of_read(answer: Value) -> Result<Vec<(String, Vec<Entry>)>, RedisError> {
    let pairs: Vec<(Value, Value)> = match answer {
        Value::Nil => return Ok(Vec::new()),
        // The newer protocol.
        Value::Map(pairs) => pairs,
        Value::Array(streams) => {
            let pairs = streams.into_iter().map(|stream| match stream {
                Value::Array(parts) => <[Value; 2]>::try_from(parts).ok().map(Into::into),
                _ => None,
            });
            pairs.collect::<Option<_>>().ok_or_else(garbled)?
        }
        _ => return Err(garbled()),
    };
    let stream = |(name, found): (Value, Value)| {
        let name = String::from_utf8(bytes(name)?).ok()?;
        Some((name, entries(found)?))
    };
    pairs.into_iter().map(stream).collect::<Option<_>>().ok_or_else(garbled)
}

/// Where to go on, and the entries, in the answer of `XAUTOCLAIM`. What it says beyond that is the
/// entries that it found removed and dropped itself.
pub(super) fn of_claim(answer: Value) -> Result<(Id, Vec<Entry>), RedisError> {
    let Value::Array(parts) = answer else { return Err(garbled()) };
    let mut parts = parts.into_iter();
    let next = parts.next().and_then(bytes).and_then(|text| Id::read(&text));
    let found = parts.next().and_then(entries);
    next.zip(found).ok_or_else(garbled)
}

fn entries(found: Value) -> Option<Vec<Entry>> {
    let Value::Array(found) = found else { return None };
    // Redis 6.2 has nothing in the place of an entry that was removed.
    found.into_iter().filter(|entry| *entry != Value::Nil).map(entry).collect()
}

fn entry(found: Value) -> Option<Entry> {
    let Value::Array(parts) = found else { return None };
    let [id, fields] = parts.try_into().ok()?;
    let id = Id::read(&bytes(id)?)?;
    let fields = match fields {
        Value::Nil => None,
        Value::Array(texts) => {
            let mut texts = texts.into_iter().map(bytes);
            let mut fields = Vec::with_capacity(texts.len() / 2);
            while let Some(name) = texts.next() {
                fields.push((name?, texts.next()??));
            }
            Some(fields)
        }
        Value::Map(pairs) => {
            let pair = |(name, value)| Some((bytes(name)?, bytes(value)?));
            Some(pairs.into_iter().map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    Some(Entry { id, fields })
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

fn garbled() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "the answer has no entries of streams"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn one(id: &str) -> Value {
        let fields = ["postrider-key", "42", "tenant", "acme", "payload", "{}"].map(text);
        Value::Array(vec![text(id), Value::Array(fields.into())])
    }

    #[test]
    fn both_protocols_say_the_same() {
        let found = Value::Array(vec![one("7-1"), one("7-2")]);
        let older = Value::Array(vec![Value::Array(vec![text("orders"), found.clone()])]);
        let newer = Value::Map(vec![(text("orders"), found)]);
        let read = of_read(older).unwrap();
        assert_eq!(read, of_read(newer).unwrap());
        let (stream, entries) = read.into_iter().next().unwrap();
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [Id(7, 1), Id(7, 2)]);
        let incoming = entries.into_iter().next().unwrap().into_incoming(&stream).unwrap();
        assert_eq!((&*incoming.topic, &*incoming.place), ("orders", "orders@7-1"));
        assert_eq!(incoming.key.as_deref(), Some("42"));
        assert_eq!(&incoming.body[..], b"{}");
        assert_eq!(incoming.headers.len(), 2, "{:?}", incoming.headers);
        assert!(of_read(Value::Nil).unwrap().is_empty());
    }

    #[test]
    fn what_was_removed_is_no_message() {
        let removed = Value::Array(vec![text("7-1"), Value::Nil]);
        let found = Value::Array(vec![removed, Value::Nil, one("7-2")]);
        let deleted = Value::Array(vec![text("7-0")]);
        let (next, entries) = of_claim(Value::Array(vec![text("8-0"), found, deleted])).unwrap();
        assert_eq!((next, entries.len()), (Id(8, 0), 2));
        let messages = entries.into_iter().filter_map(|entry| entry.into_incoming("orders"));
        assert_eq!(messages.count(), 1);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [Value::Okay, text("7-1"), Value::Array(vec![text("7-1")])] {
            assert!(of_read(answer.clone()).is_err(), "{answer:?}");
            assert!(of_claim(answer.clone()).is_err(), "{answer:?}");
        }
        let odd = Value::Array(vec![text("7-1"), Value::Array(vec![text("payload")])]);
        assert!(of_claim(Value::Array(vec![text("0-0"), Value::Array(vec![odd])])).is_err());
    }
}
