//! Reads streams back, by ranges.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use redis::{Value, cmd, from_redis_value};
use uuid::Uuid;

use super::append::PAYLOAD;
use super::connection::Connector;
use super::failure;
use super::options::Options;
use crate::formats::REPLAY_HEADER;
use crate::readback::{Kept, Readback, Scope, Unreadable};
use crate::sink::SinkError;
use crate::sinks::kept_ids::{id_header, id_in_body};
use crate::sinks::problem;

/// Entries of one question.
const BATCH_MAX: usize = 1000;

/// Reads streams of one server, one after another.
pub(in crate::sinks) struct RedisReadback {
    connector: Connector,
    /// The streams that are not read to their end, the last one of them next.
    streams: Vec<Part>,
    id_header: Option<String>,
    unreadable: Vec<Unreadable>,
    kept_since: Option<SystemTime>,
}

/// What of a stream is to be read.
struct Part {
    stream: String,
    /// The first entry that is meant, as `XRANGE` takes it.
    from: String,
    /// The last one.
    to: String,
}

/// An entry: its id, and its fields with their values.
type Entry = (String, Vec<(String, Vec<u8>)>);

impl Options {
    /// Begins to read streams back.
    pub(in crate::sinks) async fn read_back(
        &self,
        scope: &Scope,
    ) -> Result<RedisReadback, SinkError> {
        let login = self.check().map_err(problem::misconfigured)?.login;
        let mut readback = RedisReadback {
            connector: Connector::new(login),
            streams: Vec::new(),
            id_header: id_header(scope.format, "ce-"),
            unreadable: Vec::new(),
            kept_since: None,
        };
        let from = match scope.since {
            Some(since) => {
                since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string()
            }
            None => "-".to_owned(),
        };
        for stream in &scope.topics {
            match readback.last_id(stream).await {
                Ok(Some(to)) => {
                    readback.look_for_trimming(stream).await?;
                    readback.streams.push(Part { stream: stream.clone(), from: from.clone(), to });
                }
                Ok(None) => {}
                Err(error) if error.about_topic => {
                    readback.unreadable.push(Unreadable { topic: stream.clone(), error });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(readback)
    }
}

impl RedisReadback {
    async fn last_id(&self, stream: &str) -> Result<Option<String>, SinkError> {
        let last = cmd("XREVRANGE").arg(stream).arg("+").arg("-").arg("COUNT").arg(1).take();
        Ok(self.entries(stream, last).await?.into_iter().next().map(|(id, _)| id))
    }

    /// Whether entries were taken out of a stream, and how old the first one is that is left.
    async fn look_for_trimming(&mut self, stream: &str) -> Result<(), SinkError> {
        let info = cmd("XINFO").arg("STREAM").arg(stream).take();
        let answer = self.connector.run(vec![info]).await?.pop();
        let Some(Value::Array(facts)) = answer else { return Ok(()) };
        let fact = |name: &str| {
            let mut pairs = facts.chunks_exact(2);
            let is_named = |pair: &&[Value]| matches!(&pair[0], Value::BulkString(found) if found == name.as_bytes());
            pairs.find(is_named).map(|pair| &pair[1])
        };
        // Older servers do not count what was added.
        let (Some(Value::Int(length)), Some(Value::Int(added))) =
            (fact("length"), fact("entries-added"))
        else {
            return Ok(());
        };
        if added > length {
            let first = cmd("XRANGE").arg(stream).arg("-").arg("+").arg("COUNT").arg(1).take();
            let first = self.entries(stream, first).await?.into_iter().next();
            self.kept_since = self.kept_since.max(first.and_then(|(id, _)| time_of(&id)));
        }
        Ok(())
    }

    async fn entries(&self, stream: &str, command: redis::Cmd) -> Result<Vec<Entry>, SinkError> {
        let server = self.connector.server();
        match self.connector.run(vec![command]).await?.pop() {
            Some(Value::ServerError(error)) => Err(failure::refused(server, stream, &error)),
            Some(answer) => from_redis_value(answer).map_err(|_| failure::not_understood(server)),
            None => Err(failure::not_understood(server)),
        }
    }

    fn kept(&self, stream: &str, (place, fields): &Entry) -> Kept {
        let value = |wanted: &str| {
            fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_slice())
        };
        let id = match &self.id_header {
            None => value(PAYLOAD).and_then(id_in_body),
            Some(name) => value(name)
                .and_then(|id| std::str::from_utf8(id).ok())
                .and_then(|id| Uuid::parse_str(id).ok()),
        };
        let is_replay = value(REPLAY_HEADER).is_some();
        let (topic, sent_at) = (stream.to_owned(), time_of(place));
        Kept { id, topic, place: place.clone(), sent_at, is_replay }
    }
}

#[async_trait]
impl Readback for RedisReadback {
    async fn next(&mut self) -> Result<Vec<Kept>, SinkError> {
        while let Some(Part { stream, from, to }) = self.streams.pop() {
            let mut range = cmd("XRANGE");
            range.arg(&stream).arg(&from).arg(&to).arg("COUNT").arg(BATCH_MAX);
            let entries = self.entries(&stream, range).await?;
            let Some((last, _)) = entries.last() else { continue };
            let kept = entries.iter().map(|entry| self.kept(&stream, entry)).collect();
            if entries.len() == BATCH_MAX {
                self.streams.push(Part { from: format!("({last}"), stream, to });
            }
            return Ok(kept);
        }
        Ok(Vec::new())
    }

    fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    fn kept_since(&self) -> Option<SystemTime> {
        self.kept_since
    }
}

/// When an entry was added, which its id begins with.
fn time_of(id: &str) -> Option<SystemTime> {
    let (millis, _) = id.split_once('-')?;
    Some(UNIX_EPOCH + Duration::from_millis(millis.parse().ok()?))
}
