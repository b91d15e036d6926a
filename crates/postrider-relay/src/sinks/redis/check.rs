//! What can be known of a server without changing anything.
//!
//! Managed servers do not tell everything, so what cannot be read is passed over.

use std::collections::BTreeMap;

use redis::{Cmd, Value, cmd};

use super::append::Trim;
use super::{RedisSink, failure};
use crate::sink::{FailureKind, SinkError};

/// The first version that has all that is needed.
const VERSION_MIN: (u32, u32) = (6, 2);

/// From and up to which version the user `default` matters when the append-only file is read.
const REPLAYS_BY_RIGHTS: ((u32, u32), (u32, u32)) = ((7, 0), (8, 6));

/// What is asked of `CONFIG GET`, one by one as older servers want it.
const SETTINGS: [&str; 2] = ["appendfsync", "min-replicas-to-write"];

/// What the server says of itself, by name.
struct Facts(BTreeMap<String, String>);

impl Facts {
    fn is(&self, name: &str, value: &str) -> bool {
        self.0.get(name).is_some_and(|found| found == value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }
}

impl RedisSink {
    /// Whether publishing can work, and what is less safe than it could be.
    pub(super) async fn look(&self) -> Result<Vec<String>, SinkError> {
        let topic = self.pipeline.topic.as_deref();
        let mut commands = vec![cmd("INFO")];
        commands.extend(SETTINGS.map(|name| with(cmd("CONFIG"), &["GET", name])));
        let replaying = ["DRYRUN", "default", "XADD", topic.unwrap_or("s"), "*", "payload", ""];
        commands.push(with(cmd("ACL"), &replaying));
        commands.extend(topic.map(|topic| with(cmd("TYPE"), &[topic])));
        commands.push(with(cmd("WAIT"), &["0", "1"]));
        let has_script = self.appending.ids_max > 0;
        let streams: Vec<_> = topic.into_iter().collect();
        commands.push(match has_script {
            true => self.appending.command(&[], &streams),
            false => {
                let topic = topic.unwrap_or("s");
                let user = self.connector.user();
                with(cmd("ACL"), &["DRYRUN", user, "XADD", topic, "*", "payload", ""])
            }
        });
        let mut answers = self.connector.run(commands).await?;
        let (appended, waited) = (answers.pop(), answers.pop());
        match (has_script, appended) {
            // The script, or a command in it, may be forbidden, which nothing else would tell.
            (true, appended) => {
                self.appended(appended).1.map_or(Ok(()), |unappended| Err(unappended.error))?;
            }
            (false, appended) if topic.is_some() => self.look_at_rights(appended)?,
            (false, _) => {}
        }
        if let (1.., Some(Value::ServerError(error))) = (self.wait_replicas, waited) {
            return Err(failure::answered(self.connector.server(), &error));
        }
        if let Some(topic) = topic {
            self.look_at_stream(topic, answers.pop())?;
        }
        let replayed = answers.pop();
        let facts = facts(answers);
        self.look_at_server(&facts)?;
        let mut cautions = self.cautions(&facts);
        if has_script && self.connector.user() != "default" && replays_by_rights(&facts) {
            cautions.extend(self.look_at_replay(replayed)?);
        }
        Ok(cautions)
    }

    /// Whether plain commands are allowed, as far as the server can tell and may.
    fn look_at_rights(&self, answer: Option<Value>) -> Result<(), SinkError> {
        let said = match answer {
            Some(Value::SimpleString(said)) => said,
            Some(Value::BulkString(said)) => String::from_utf8_lossy(&said).into_owned(),
            _ => return Ok(()),
        };
        Err(failure::not_permitted(self.connector.server(), &said))
    }

    /// Whether the server would drop our transactions when it reads its file again, which it does
    /// as the user `default`.
    fn look_at_replay(&self, answer: Option<Value>) -> Result<Option<String>, SinkError> {
        let server = self.connector.server();
        let mend = "run `ACL SETUSER default off ~* &* +@all`, with which nobody can log in, or \
                    set dedupe_events = 0";
        match answer {
            Some(Value::Okay) => Ok(None),
            Some(Value::SimpleString(_) | Value::BulkString(_)) => {
                let message = format!(
                    "{server} would lose all events when it starts again: it reads its file as the \
                     user default, who may not append to streams; {mend}"
                );
                Err(SinkError::new(FailureKind::Misconfigured, message))
            }
            _ => Ok(Some(format!(
                "if the user default of {server} has few rights, it loses all events when it \
                 starts again (redis#14541), which we may not look at; {mend}"
            ))),
        }
    }

    fn look_at_stream(&self, topic: &str, is: Option<Value>) -> Result<(), SinkError> {
        let server = self.connector.server();
        match is {
            Some(Value::SimpleString(is)) if is == "stream" => Ok(()),
            Some(Value::SimpleString(is)) if is != "none" => Err(failure::no_stream(server, topic)),
            Some(Value::SimpleString(_)) if !self.appending.creates => {
                Err(failure::missing(server, topic))
            }
            _ => Ok(()),
        }
    }

    fn look_at_server(&self, facts: &Facts) -> Result<(), SinkError> {
        let server = self.connector.server();
        let (kind, message) = if facts.is("cluster_enabled", "1") {
            let message = format!("{server} is a node of a cluster, which is not supported");
            (FailureKind::Misconfigured, message)
        } else if version(facts).is_some_and(|version| version < VERSION_MIN) {
            let (major, minor) = VERSION_MIN;
            let message = format!(
                "{server} is older than {major}.{minor}; Redis {major}.{minor} or newer is needed"
            );
            (FailureKind::Misconfigured, message)
        } else if facts.is("role", "slave") && !facts.is("slave_read_only", "0") {
            let message = format!("{server} is a replica, which takes no writes; name the primary");
            (FailureKind::Unavailable, message)
        } else {
            let replicas = facts.number("connected_slaves").unwrap_or(u64::MAX);
            if replicas >= self.wait_replicas as u64 {
                return Ok(());
            }
            let have = i64::try_from(replicas).unwrap_or(i64::MAX);
            return Err(failure::too_few_replicas(server, have, self.wait_replicas));
        };
        Err(SinkError::new(kind, message))
    }

    fn cautions(&self, facts: &Facts) -> Vec<String> {
        let server = self.connector.server();
        let mut cautions = Vec::new();
        let mut caution = |text: String| cautions.push(text);
        let is_replicated = self.wait_replicas > 0;
        if facts.is("aof_enabled", "0") {
            caution(format!(
                "{server} writes no append-only file, so a crash takes all events since its last \
                 snapshot; set appendonly yes"
            ));
        } else if facts.is("appendfsync", "no") {
            caution(format!(
                "{server} leaves it to the system when events are on disk; set appendfsync always"
            ));
        } else if facts.is("appendfsync", "everysec") && !is_replicated {
            caution(format!(
                "if the machine of {server} fails, the events of its last second are gone; set \
                 appendfsync always, or wait_replicas = 1 if there is a replica"
            ));
        }
        let policy = facts.0.get("maxmemory_policy").map_or("", String::as_str);
        let is_limited = facts.number("maxmemory").is_some_and(|bytes| bytes > 0);
        if is_limited && policy.starts_with("allkeys-") {
            caution(format!(
                "{server} throws streams away when its memory is full (maxmemory-policy {policy}); \
                 set maxmemory-policy noeviction"
            ));
        } else if is_limited && policy.starts_with("volatile-") && self.appending.ids_max > 0 {
            caution(format!(
                "{server} forgets event ids when its memory is full (maxmemory-policy {policy}), \
                 and then an event may come twice; set maxmemory-policy noeviction"
            ));
        }
        let has_replicas = facts.number("connected_slaves").is_some_and(|count| count > 0);
        if has_replicas && facts.is("min-replicas-to-write", "0") && !is_replicated {
            caution(format!(
                "a failover of {server} takes what its replicas do not have yet; set \
                 wait_replicas = 1"
            ));
        }
        self.own_cautions(&mut caution);
        cautions
    }

    /// What is less safe by this sink's own options.
    fn own_cautions(&self, caution: &mut dyn FnMut(String)) {
        let window = self.appending.ids_seconds;
        if self.appending.ids_max == 0 {
            caution(
                "dedupe_events is 0, so an event whose answer is lost comes twice; leave it out"
                    .to_owned(),
            );
        } else if window < self.pipeline.retry_horizon.as_secs() {
            let horizon = self.pipeline.retry_horizon.as_secs();
            caution(format!(
                "event ids are forgotten after {window} s, and an event may be tried again for \
                 {horizon} s; set dedupe_window = \"{horizon}s\" or more"
            ));
        }
        if self.appending.trim == Trim::Nothing {
            caution(
                "streams grow for ever; set maxlen or retention, unless something else trims them"
                    .to_owned(),
            );
        }
    }
}

fn with(mut command: Cmd, args: &[&str]) -> Cmd {
    for arg in args {
        command.arg(*arg);
    }
    command
}

/// What the answers to `INFO` and `CONFIG GET` say. An error says nothing.
fn facts(answers: Vec<Value>) -> Facts {
    let mut facts = BTreeMap::new();
    for answer in answers {
        match answer {
            Value::BulkString(info) => {
                let info = String::from_utf8_lossy(&info);
                let lines = info.lines().filter_map(|line| line.split_once(':'));
                facts.extend(lines.map(|(name, value)| (name.to_owned(), value.to_owned())));
            }
            Value::Array(pair) => {
                if let [Value::BulkString(name), Value::BulkString(value)] = &pair[..] {
                    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    facts.insert(text(name), text(value));
                }
            }
            _ => {}
        }
    }
    Facts(facts)
}

/// The first two numbers of the version.
fn version(facts: &Facts) -> Option<(u32, u32)> {
    let mut parts = facts.0.get("redis_version")?.split('.').map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?))
}

/// Whether transactions in the append-only file count only if the user `default` has the right.
/// Valkey says that it is Redis 7.2.
fn replays_by_rights(facts: &Facts) -> bool {
    let is_wrong = |version| (REPLAYS_BY_RIGHTS.0..REPLAYS_BY_RIGHTS.1).contains(&version);
    !facts.is("aof_enabled", "0") && version(facts).is_none_or(is_wrong)
}

#[cfg(test)]
mod tests;
