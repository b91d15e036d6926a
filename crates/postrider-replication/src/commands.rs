//! The commands of the replication protocol, as the version of the server wants them.

use std::time::Duration;

use crate::Lsn;

pub(crate) const IDENTIFY_SYSTEM: &str = "IDENTIFY_SYSTEM";
/// In milliseconds; zero for none.
pub(crate) const SENDER_TIMEOUT: &str =
    "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";

/// The first version with options in parentheses.
const OPTIONS_SINCE: u32 = 150_000;
const ORIGIN_SINCE: u32 = 160_000;
const FAILOVER_SINCE: u32 = 170_000;

/// How a slot is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotOptions {
    /// It is gone when the connection is.
    pub temporary: bool,
    /// Whether others can see what the database was like when the slot began.
    pub snapshot: Snapshot,
    /// It is kept by standby servers, too. PostgreSQL has that since version 17; with an older
    /// one it makes no difference.
    pub failover: bool,
}

/// Whether the start of a slot can be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapshot {
    /// Other sessions can `SET TRANSACTION SNAPSHOT`, until the next call on the connection.
    Export,
    /// It cannot.
    #[default]
    Nothing,
}

/// What `pgoutput` is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgOutput {
    /// The publications. They have to exist when a change is decoded, so make them before the
    /// slot.
    pub publications: Vec<String>,
    /// Columns are sent in binary where their type can be.
    pub binary: bool,
    /// Send what `pg_logical_emit_message` is given, too; all of it, whatever its prefix is.
    pub messages: bool,
    /// Leave out what the server has itself received by replication. PostgreSQL has that since
    /// version 16; with an older one it makes no difference.
    pub origin_none: bool,
    /// Send large transactions in blocks while they are in progress.
    pub streaming: bool,
}

/// How the stream is kept up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// How often the server is told how far we are, at least. It is lowered to a third of the
    /// server's `wal_sender_timeout`. Defaults to 10 s.
    pub status_interval: Duration,
    /// How much is received ahead of whoever reads the stream, in bytes. One larger message is
    /// received if there is nothing else. Defaults to 8 MiB.
    pub buffer_bytes: usize,
    /// A column with more bytes is [`Value::TooLong`](crate::pgoutput::Value::TooLong), and of a
    /// logical message no more than this is kept. What is not kept is passed over while it is
    /// received, so that no message takes more than about five times as much memory. By default
    /// everything is kept.
    pub value_bytes_max: usize,
}

impl Default for Flow {
    fn default() -> Self {
        let status_interval = Duration::from_secs(10);
        Self { status_interval, buffer_bytes: 8 << 20, value_bytes_max: usize::MAX }
    }
}

pub(crate) fn create_slot(name: &str, options: SlotOptions, server_version: u32) -> String {
    let name = identifier(name);
    let temporary = if options.temporary { " TEMPORARY" } else { "" };
    let snapshot = match options.snapshot {
        Snapshot::Export => "export",
        Snapshot::Nothing => "nothing",
    };
    let options = if server_version < OPTIONS_SINCE {
        match options.snapshot {
            Snapshot::Export => "EXPORT_SNAPSHOT".to_owned(),
            Snapshot::Nothing => "NOEXPORT_SNAPSHOT".to_owned(),
        }
    } else if options.failover && server_version >= FAILOVER_SINCE {
        format!("(SNAPSHOT '{snapshot}', FAILOVER)")
    } else {
        format!("(SNAPSHOT '{snapshot}')")
    };
    format!("CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {options}")
}

pub(crate) fn drop_slot(name: &str) -> String {
    format!("DROP_REPLICATION_SLOT {}", identifier(name))
}

pub(crate) fn start(slot: &str, at: Lsn, output: &PgOutput, server_version: u32) -> String {
    let publications: Vec<_> = output.publications.iter().map(|name| identifier(name)).collect();
    // Version 2 adds the streaming of transactions in progress, and nothing else.
    let protocol = if output.streaming { "2" } else { "1" };
    let mut options = format!(
        "proto_version '{protocol}', publication_names {}",
        literal(&publications.join(","))
    );
    for (is_wanted, option) in [
        (output.binary, "binary 'true'"),
        (output.messages, "messages 'true'"),
        (output.origin_none && server_version >= ORIGIN_SINCE, "origin 'none'"),
        (output.streaming, "streaming 'on'"),
    ] {
        if is_wanted {
            options.push_str(", ");
            options.push_str(option);
        }
    }
    format!("START_REPLICATION SLOT {} LOGICAL {at} ({options})", identifier(slot))
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The commands know no escapes but the doubled quote.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_made_as_the_version_wants_it() {
        let options = |temporary, snapshot, failover| SlotOptions { temporary, snapshot, failover };
        for (options, version, expected) in [
            (options(false, Snapshot::Nothing, true), 140_000, "NOEXPORT_SNAPSHOT"),
            (options(false, Snapshot::Export, false), 149_999, "EXPORT_SNAPSHOT"),
            (options(false, Snapshot::Export, true), 160_000, "(SNAPSHOT 'export')"),
            (options(false, Snapshot::Nothing, false), 170_000, "(SNAPSHOT 'nothing')"),
            (options(false, Snapshot::Export, true), 170_000, "(SNAPSHOT 'export', FAILOVER)"),
            (options(false, Snapshot::Nothing, true), 180_004, "(SNAPSHOT 'nothing', FAILOVER)"),
        ] {
            assert_eq!(
                create_slot("relay", options, version),
                format!("CREATE_REPLICATION_SLOT \"relay\" LOGICAL pgoutput {expected}")
            );
        }
        assert_eq!(
            create_slot("a\"b", options(true, Snapshot::Nothing, false), 150_000),
            "CREATE_REPLICATION_SLOT \"a\"\"b\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"
        );
    }

    #[test]
    fn only_what_the_server_has_is_asked_for() {
        let mut output = PgOutput {
            publications: vec!["it's".to_owned(), "a\"b".to_owned()],
            ..PgOutput::default()
        };
        assert_eq!(
            start("relay", Lsn(0x1_0000_0010), &output, 150_000),
            "START_REPLICATION SLOT \"relay\" LOGICAL 1/10 \
             (proto_version '1', publication_names '\"it''s\",\"a\"\"b\"')"
        );
        output.publications = vec!["outbox".to_owned()];
        (output.binary, output.messages, output.origin_none) = (true, true, true);
        let expected = "(proto_version '1', publication_names '\"outbox\"', binary 'true', \
                        messages 'true'";
        assert!(start("relay", Lsn::ZERO, &output, 159_999).ends_with(&format!("{expected})")));
        let with_origin = format!("{expected}, origin 'none')");
        assert!(start("relay", Lsn::ZERO, &output, 160_000).ends_with(&with_origin));
        output = PgOutput { streaming: true, ..PgOutput::default() };
        let streaming = "(proto_version '2', publication_names '', streaming 'on')";
        assert!(start("relay", Lsn::ZERO, &output, 160_000).ends_with(streaming));
    }
}
