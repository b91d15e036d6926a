//! The commands of a consumer group.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};

use super::entries::Id;

/// How many entries one command names.
const IDS_MAX: usize = 1024;
/// Longer than any visibility: what is idle for so long may be taken over at once.
const LONG_IDLE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A group, and who we are in it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) consumer: String,
}

impl Group {
    /// Makes the group at the beginning of a stream, and the stream.
    pub(super) fn create(&self, stream: &str) -> Cmd {
        let mut command = cmd("XGROUP");
        command.arg("CREATE").arg(stream).arg(&self.name).arg("0").arg("MKSTREAM");
        command
    }

    /// Reads what the consumer was given before, after an entry.
    pub(super) fn read_own(&self, stream: &str, after: Id, count: usize) -> Cmd {
        let mut command = self.read(count);
        command.arg("STREAMS").arg(stream).arg(after.to_string());
        command
    }

    /// Reads what is new, and waits for it.
    pub(super) fn read_new(&self, streams: &[Arc<str>], wait: Duration, count: usize) -> Cmd {
        let mut command = self.read(count);
        // With 0 it would wait for ever.
        command.arg("BLOCK").arg(wait.as_millis().max(1) as u64).arg("STREAMS");
        for stream in streams {
            command.arg(&**stream);
        }
        for _ in streams {
            command.arg(">");
        }
        command
    }

    fn read(&self, count: usize) -> Cmd {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.name).arg(&self.consumer).arg("COUNT").arg(count);
        command
    }

    /// Takes over what was left lying.
    pub(super) fn claim(&self, stream: &str, idle: Duration, from: Id, count: usize) -> Cmd {
        let mut command = cmd("XAUTOCLAIM");
        command.arg(stream).arg(&self.name).arg(&self.consumer).arg(idle.as_millis() as u64);
        command.arg(from.to_string()).arg("COUNT").arg(count);
        command
    }

    /// Names what the consumer has, as much as it may have at once.
    pub(super) fn pending(&self, stream: &str) -> Cmd {
        let mut command = cmd("XPENDING");
        command.arg(stream).arg(&self.name).arg("-").arg("+").arg(IDS_MAX).arg(&self.consumer);
        command
    }

    pub(super) fn acknowledge(&self, stream: &str, ids: &[Id]) -> Vec<Cmd> {
        let of = |ids: &[Id]| {
            let mut command = cmd("XACK");
            command.arg(stream).arg(&self.name);
            for id in ids {
                command.arg(id.to_string());
            }
            command
        };
        ids.chunks(IDS_MAX).map(of).collect()
    }

    /// Lets the time of entries begin anew.
    pub(super) fn extend(&self, stream: &str, ids: &[Id]) -> Vec<Cmd> {
        self.set_idle(stream, ids, Duration::ZERO)
    }

    /// Lets others take over entries at once.
    pub(super) fn release(&self, stream: &str, ids: &[Id]) -> Vec<Cmd> {
        self.set_idle(stream, ids, LONG_IDLE)
    }

    fn set_idle(&self, stream: &str, ids: &[Id], idle: Duration) -> Vec<Cmd> {
        let of = |ids: &[Id]| {
            let mut command = cmd("XCLAIM");
            command.arg(stream).arg(&self.name).arg(&self.consumer).arg(0);
            for id in ids {
                command.arg(id.to_string());
            }
            // Only the ids, and without counting another delivery.
            command.arg("IDLE").arg(idle.as_millis() as u64).arg("JUSTID");
            command
        };
        ids.chunks(IDS_MAX).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &Cmd) -> String {
        let texts = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn many_entries_go_in_one_command_and_none_in_no_command() {
        let group = Group { name: "billing".to_owned(), consumer: "b1".to_owned() };
        let ids: Vec<Id> = (1..=3).map(|number| Id(number, 0)).collect();
        let acknowledge = group.acknowledge("orders", &ids);
        assert_eq!(told(&acknowledge[0]), "XACK orders billing 1-0 2-0 3-0");
        assert!(group.acknowledge("orders", &[]).is_empty());
        assert_eq!(group.acknowledge("orders", &vec![Id(1, 1); IDS_MAX + 1]).len(), 2);
        let extend = group.extend("orders", &ids[..1]);
        assert_eq!(told(&extend[0]), "XCLAIM orders billing b1 0 1-0 IDLE 0 JUSTID");
    }

    #[test]
    fn no_command_waits_for_ever() {
        let group = Group { name: "billing".to_owned(), consumer: "b1".to_owned() };
        let read = group.read_new(&["a".into(), "b".into()], Duration::from_micros(1), 9);
        assert_eq!(told(&read), "XREADGROUP GROUP billing b1 COUNT 9 BLOCK 1 STREAMS a b > >");
    }
}
