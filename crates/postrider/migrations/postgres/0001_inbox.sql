-- One inbox serves all outboxes of a schema.
CREATE TABLE IF NOT EXISTS inbox (
    consumer     text NOT NULL CHECK (consumer <> ''),
    event_id     uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);
-- For pruning. Every claim would pay for a tree, with a quarter more of log; this one is as good
-- as free. Where new claims fill the room of pruned ones, it says less, and pruning reads more.
CREATE INDEX IF NOT EXISTS inbox_processed_at ON inbox USING brin (processed_at) WITH (autosummarize = on);

-- The highest version that a consumer has seen of each key. Rows are changed often and in place.
CREATE TABLE IF NOT EXISTS inbox_versions (
    consumer       text NOT NULL CHECK (consumer <> ''),
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    version        bigint NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 80);

-- Events that a consumer keeps: stored, to be handled later, or dead.
CREATE TABLE IF NOT EXISTS inbox_messages (
    -- The order in which they came.
    position       bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) NOT NULL,
    occurred_at    timestamptz NOT NULL,
    stored_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    event_version  bigint NOT NULL,
    attempts       integer NOT NULL DEFAULT 0,
    dead           boolean NOT NULL DEFAULT false,
    event_id       uuid NOT NULL,
    consumer       text NOT NULL CHECK (consumer <> ''),
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    event_type     text NOT NULL,
    content_type   text NOT NULL,
    topic          text,
    error          text, -- why the last attempt failed
    headers        jsonb NOT NULL,
    payload        bytea NOT NULL,
    PRIMARY KEY (consumer, event_id)
);
-- The first of each key, and what is due.
CREATE INDEX IF NOT EXISTS inbox_messages_key ON inbox_messages (consumer, aggregate_type, aggregate_id, position) WHERE NOT dead;
CREATE INDEX IF NOT EXISTS inbox_messages_due ON inbox_messages (consumer, due_at) WHERE NOT dead;
CREATE INDEX IF NOT EXISTS inbox_messages_dead ON inbox_messages (consumer, position) WHERE dead;

