//! The statements about scratch outboxes.

/// Durable when it is committed, as an application has it that loses nothing.
pub(in super::super) const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";

/// What a transaction of an application changes.
pub(in super::super) const TABLES: &str = "
    CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
    CREATE TABLE ledger (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, amount INTEGER NOT NULL,
      at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))";
/// `?1` how many.
pub(in super::super) const ADD_ACCOUNTS: &str = "
    WITH RECURSIVE numbers (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM numbers WHERE id + 1 < ?1)
    INSERT INTO accounts SELECT id, 0 FROM numbers";
/// `?1` account.
pub(in super::super) const CHANGE_BALANCE: &str =
    "UPDATE accounts SET balance = balance + 1 WHERE id = ?1";
/// `?1` account.
pub(in super::super) const ADD_TO_LEDGER: &str =
    "INSERT INTO ledger (account, amount) VALUES (?1, 1)";

/// What a relay reads of a row.
pub(in super::super) const COPY: &str = "
    SELECT seq, id, aggregate_type, aggregate_id, event_type, event_version, payload, content_type,
      headers, topic, occurred_at, deliver_after FROM outbox";
