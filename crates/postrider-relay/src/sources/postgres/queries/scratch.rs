//! The statements about scratch outboxes.

use crate::scratch::ScratchName;

/// Version, database and role as SQL has them, may make a schema, may read the log, its level.
pub(in super::super) const EXAMINE: &str = "
    SELECT split_part(current_setting('server_version'), ' ', 1),
      quote_ident(current_database()), quote_ident(current_user),
      has_database_privilege(current_database(), 'CREATE'),
      (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
      current_setting('wal_level')";

/// Whatever has a name by which a place may be found: slots and publications have one that begins
/// with our own.
pub(in super::super) const LIST: &str = r"
    SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'postrider\_bench\_%'
    UNION SELECT substr(pubname, 11) FROM pg_publication
      WHERE pubname LIKE 'postrider\_postrider\_bench\_%'
    UNION SELECT substr(slot_name, 11) FROM pg_replication_slots
      WHERE slot_name LIKE 'postrider\_postrider\_bench\_%' AND database = current_database()";

/// `$1` name.
pub(in super::super) const CLAIM: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";

pub(in super::super) const SCHEMA: &str = "SELECT current_schema()::text";

/// What a transaction of an application changes.
pub(in super::super) const TABLES: &str = "
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      account int NOT NULL, amount bigint NOT NULL,
      at timestamptz NOT NULL DEFAULT clock_timestamp())";
/// `$1` how many.
pub(in super::super) const ADD_ACCOUNTS: &str =
    "INSERT INTO accounts SELECT id, 0 FROM generate_series(0, $1 - 1) AS id";
/// `$1` account.
pub(in super::super) const CHANGE_BALANCE: &str =
    "UPDATE accounts SET balance = balance + 1 WHERE id = $1";
/// `$1` account.
pub(in super::super) const ADD_TO_LEDGER: &str =
    "INSERT INTO ledger (account, amount) VALUES ($1, 1)";

/// What a relay reads of a row.
pub(in super::super) const COPY: &str = "
    COPY (SELECT seq, id, aggregate_type, aggregate_id, event_type, event_version, payload,
      content_type, headers, topic, occurred_at, deliver_after FROM outbox) TO STDOUT";

/// `$1` a pattern.
pub(in super::super) const PUBLICATIONS: &str =
    "SELECT pubname::text FROM pg_publication WHERE pubname LIKE $1";
/// `$1` a pattern.
pub(in super::super) const SLOTS: &str = "
    SELECT slot_name::text FROM pg_replication_slots
    WHERE slot_name LIKE $1 AND database = current_database()";
/// `$1` slot.
pub(in super::super) const END_READER: &str = "
    SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
    WHERE slot_name = $1 AND active_pid IS NOT NULL";
/// `$1` slot.
pub(in super::super) const DROP_SLOT: &str = "SELECT pg_drop_replication_slot($1)";

/// The pattern of what a relay makes for the outbox of a place.
pub(in super::super) fn made_for(name: &ScratchName) -> String {
    format!("postrider_{}_%", name.as_str()).replace('_', "\\_")
}

pub(in super::super) fn create_schema(name: &ScratchName) -> String {
    format!("CREATE SCHEMA {}", name.as_str())
}

pub(in super::super) fn drop_schema(name: &ScratchName) -> String {
    format!("DROP SCHEMA IF EXISTS {} CASCADE", name.as_str())
}

pub(in super::super) fn drop_publication(publication: &str) -> String {
    format!("DROP PUBLICATION IF EXISTS \"{}\"", publication.replace('"', "\"\""))
}
