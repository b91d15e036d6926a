-- An event that was set aside, as it stood.
CREATE TABLE {outbox_failures} (
    pipeline       text NOT NULL,
    seq            bigint NOT NULL,
    id             text,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    event_version  bigint,
    payload        bytea,
    content_type   text,
    headers        text,
    topic          text,
    occurred_at    timestamptz,
    created_at     timestamptz,
    deliver_after  timestamptz,
    state          text NOT NULL CHECK (state IN ('parked', 'deferred', 'queued', 'discarded')),
    blocks         boolean NOT NULL,
    due_at         timestamptz, -- when to hand it out again; NULL: not by itself
    attempts       integer NOT NULL,
    kind           text,
    error          text,
    set_aside_at   timestamptz NOT NULL,
    -- The order in which events were set aside, of all pipelines: how dead letters are listed.
    ordinal        bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    PRIMARY KEY (pipeline, seq)
);
CREATE INDEX {outbox_failures_key} ON {outbox_failures} (pipeline, aggregate_type, aggregate_id, seq) WHERE blocks;
CREATE INDEX {outbox_failures_due} ON {outbox_failures} (pipeline, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX {outbox_failures_id} ON {outbox_failures} (id);
CREATE INDEX {outbox_failures_parked} ON {outbox_failures} (ordinal) WHERE state = 'parked';

-- Rows of this table are written often and hold little: room in the page keeps their
-- versions together.
CREATE TABLE {outbox_checkpoints} (
    pipeline   text NOT NULL,
    shard      integer NOT NULL DEFAULT 0,
    shards     integer NOT NULL DEFAULT 1,
    progress   text NOT NULL,
    -- Of a cursor: everything visible in `base` is settled; of what is visible in `tick`,
    -- everything up to `position`; of what is visible in `seen`, the numbers in `beyond`.
    base       pg_snapshot,
    tick       pg_snapshot,
    position   bigint NOT NULL DEFAULT 0,
    seen       pg_snapshot,
    beyond     int8multirange NOT NULL DEFAULT '{}',
    -- While the log is read: everything committed before `lsn` is settled. As long as there is a
    -- `slot_snapshot`, the table has to be read first, up to what that sees. `publication` says
    -- which one it is, `log_only` that there were events that are in no table.
    lsn           pg_lsn,
    slot_snapshot pg_snapshot,
    publication   text,
    log_only      boolean NOT NULL DEFAULT false,
    -- The database cluster to which the snapshots belong.
    system_id  bigint,
    crashes    integer NOT NULL DEFAULT 0,
    settled_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, shard)
) WITH (fillfactor = 50);

-- Who may read and settle a shard. Whoever takes it over counts the epoch up; a relay with an
-- older epoch changes nothing any more.
CREATE TABLE {outbox_leases} (
    pipeline   text NOT NULL,
    shard      integer NOT NULL,
    epoch      bigint NOT NULL DEFAULT 0,
    owner      text,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    -- A relay with fewer shards asks for this one.
    wanted_by  text,
    wanted_at  timestamptz,
    PRIMARY KEY (pipeline, shard)
) WITH (fillfactor = 50);

-- Rows under way where nothing is kept in order and several relays read side by side. A claim
-- is worth as much as the lease it was made under.
CREATE TABLE {outbox_claims} (
    pipeline   text NOT NULL,
    seq        bigint NOT NULL,
    shard      integer NOT NULL,
    epoch      bigint NOT NULL,
    PRIMARY KEY (pipeline, seq)
);
CREATE INDEX {outbox_claims_lease} ON {outbox_claims} (pipeline, shard);

-- What an operator has stopped: a pipeline ('*' is every one), or one key if it is named.
CREATE TABLE {outbox_pauses} (
    pipeline       text NOT NULL,
    aggregate_type text NOT NULL DEFAULT '',
    aggregate_id   text NOT NULL DEFAULT '',
    paused_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason         text,
    PRIMARY KEY (pipeline, aggregate_type, aggregate_id)
);

-- Has a row once an event was written to the log alone: from then on no slot is given up.
CREATE TABLE {outbox_messages} (
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

