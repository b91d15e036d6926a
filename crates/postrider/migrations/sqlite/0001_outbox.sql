CREATE TABLE {outbox} (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    event_version  INTEGER NOT NULL DEFAULT 1,
    payload        BLOB NOT NULL,
    content_type   TEXT NOT NULL DEFAULT 'application/json',
    headers        TEXT NOT NULL DEFAULT '{}',
    topic          TEXT,
    occurred_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    created_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    deliver_after  TEXT,
    published_at   TEXT
);
CREATE INDEX {outbox_unpublished} ON {outbox} (seq) WHERE published_at IS NULL;

-- An event that was set aside, as it stood. Its columns have no type, so that a row that cannot
-- be decoded fits in unchanged.
CREATE TABLE {outbox_failures} (
    pipeline       TEXT NOT NULL,
    seq,
    id,
    aggregate_type,
    aggregate_id,
    event_type,
    event_version,
    payload,
    content_type,
    headers,
    topic,
    occurred_at,
    created_at,
    deliver_after,
    state          TEXT NOT NULL CHECK (state IN ('parked', 'deferred', 'queued', 'discarded')),
    blocks         INTEGER NOT NULL,
    due_at         TEXT, -- when to hand it out again; NULL: not by itself
    attempts       INTEGER NOT NULL,
    kind           TEXT,
    error          TEXT,
    set_aside_at   TEXT NOT NULL,
    PRIMARY KEY (pipeline, seq)
);
CREATE INDEX {outbox_failures_key} ON {outbox_failures} (pipeline, aggregate_type, aggregate_id, seq);
CREATE INDEX {outbox_failures_due} ON {outbox_failures} (pipeline, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX {outbox_failures_id} ON {outbox_failures} (id);

CREATE TABLE {outbox_checkpoints} (
    pipeline   TEXT PRIMARY KEY,
    progress   TEXT NOT NULL,
    position   INTEGER NOT NULL DEFAULT 0,
    -- Stretches beyond the position that are settled as well, such as 12-15,20-20.
    beyond     TEXT NOT NULL DEFAULT '',
    crashes    INTEGER NOT NULL DEFAULT 0,
    settled_at TEXT,
    updated_at TEXT NOT NULL
);

-- What an operator has stopped: a pipeline ('*' is every one), or one key if it is named.
CREATE TABLE {outbox_pauses} (
    pipeline       TEXT NOT NULL,
    aggregate_type TEXT NOT NULL DEFAULT '',
    aggregate_id   TEXT NOT NULL DEFAULT '',
    paused_at      TEXT NOT NULL,
    reason         TEXT,
    PRIMARY KEY (pipeline, aggregate_type, aggregate_id)
) WITHOUT ROWID;

-- One inbox serves all outboxes of a database.
CREATE TABLE IF NOT EXISTS inbox (
    consumer     TEXT CHECK (consumer <> ''),
    event_id     TEXT,
    processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, event_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS inbox_processed_at ON inbox (processed_at);

-- The highest version that a consumer has seen of each key.
CREATE TABLE IF NOT EXISTS inbox_versions (
    consumer       TEXT CHECK (consumer <> ''),
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITHOUT ROWID;

-- Events that a consumer keeps: stored, to be handled later, or dead.
CREATE TABLE IF NOT EXISTS inbox_messages (
    position       INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which they came
    consumer       TEXT NOT NULL CHECK (consumer <> ''),
    event_id       TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    event_version  INTEGER NOT NULL,
    payload        BLOB NOT NULL,
    content_type   TEXT NOT NULL,
    headers        TEXT NOT NULL,
    topic          TEXT,
    occurred_at    TEXT NOT NULL,
    stored_at      TEXT NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 0,
    due_at         TEXT NOT NULL,
    error          TEXT, -- why the last attempt failed
    dead           INTEGER NOT NULL DEFAULT 0,
    UNIQUE (consumer, event_id)
);
-- The first of each key, and what is due.
CREATE INDEX IF NOT EXISTS inbox_messages_key ON inbox_messages (consumer, aggregate_type, aggregate_id, position) WHERE NOT dead;
CREATE INDEX IF NOT EXISTS inbox_messages_due ON inbox_messages (consumer, due_at) WHERE NOT dead;
CREATE INDEX IF NOT EXISTS inbox_messages_dead ON inbox_messages (consumer, position) WHERE dead;
