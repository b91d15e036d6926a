-- Claims an event for a consumer, in the transaction that has the event's effect: true for the
-- first time, false if the effect was committed before.
CREATE OR REPLACE FUNCTION inbox_accept(consumer text, event_id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce($1, '') = '' THEN
        RAISE EXCEPTION 'the event was not accepted: consumer is empty'
            USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Claims several events for a consumer. Answers those that are accepted for the first time, each
-- once and in the order given. They are written in the order of the ids, so that two calls do not
-- wait for each other in a circle.
CREATE OR REPLACE FUNCTION inbox_accept_all(consumer text, event_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    accepted uuid[];
BEGIN
    IF coalesce($1, '') = '' OR $2 IS NULL THEN
        RAISE EXCEPTION 'no event was accepted: %', CASE WHEN $2 IS NULL THEN 'event_ids is NULL'
            ELSE 'consumer is empty' END USING ERRCODE = 'check_violation';
    END IF;
    WITH given AS (
        SELECT g.id, min(g.place) AS place FROM unnest($2) WITH ORDINALITY AS g (id, place) GROUP BY g.id
    ), claimed AS (
        INSERT INTO inbox (consumer, event_id) SELECT $1, g.id FROM given AS g ORDER BY g.id
        ON CONFLICT DO NOTHING RETURNING event_id
    )
    SELECT coalesce(array_agg(c.event_id ORDER BY g.place), '{}') INTO accepted
        FROM claimed AS c JOIN given AS g ON g.id = c.event_id;
    RETURN accepted;
END
$$;

-- Moves the highest version that a consumer has seen of a key, unless it is as high already, and
-- answers the one before; NULL if there was none. Whoever asks for the same key at the same time
-- waits.
CREATE OR REPLACE FUNCTION inbox_advance(consumer text, aggregate_type text, aggregate_id text, version bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    last bigint;
BEGIN
    IF coalesce($1, '') = '' OR coalesce($4, -1) < 0 THEN
        RAISE EXCEPTION 'the version was not kept: %', CASE WHEN coalesce($1, '') = '' THEN 'consumer is empty'
            ELSE 'version is not a number from 0' END USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO inbox_versions VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT v.version INTO STRICT last FROM inbox_versions AS v
        WHERE v.consumer = $1 AND v.aggregate_type = $2 AND v.aggregate_id = $3 FOR UPDATE;
    IF last < $4 THEN
        UPDATE inbox_versions AS v SET version = $4
            WHERE v.consumer = $1 AND v.aggregate_type = $2 AND v.aggregate_id = $3;
    END IF;
    RETURN last;
END
$$;

-- Keeps an event for a consumer, to be handled later: true, or false if it is kept already or was
-- accepted.
CREATE OR REPLACE FUNCTION inbox_store(
    consumer       text,
    event_id       uuid,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    headers        jsonb DEFAULT '{}',
    event_version  bigint DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF coalesce($1, '') = '' THEN
        RAISE EXCEPTION 'the event was not stored: consumer is empty'
            USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO inbox_messages (consumer, event_id, aggregate_type, aggregate_id, event_type, payload,
        headers, event_version, occurred_at, topic, content_type)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Only now: the insert may have waited for whoever accepted the event and removed it from here.
    IF EXISTS (SELECT FROM inbox AS i WHERE i.consumer = $1 AND i.event_id = $2) THEN
        DELETE FROM inbox_messages AS m WHERE m.consumer = $1 AND m.event_id = $2;
        RETURN false;
    END IF;
    RETURN true;
END
$$;

-- Keeps an event that could not be handled as dead, whether it was stored or not, and claims it.
CREATE OR REPLACE FUNCTION inbox_bury(
    consumer       text,
    event_id       uuid,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    error          text,
    attempts       integer,
    headers        jsonb DEFAULT '{}',
    event_version  bigint DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF coalesce($1, '') = '' THEN
        RAISE EXCEPTION 'the event was not buried: consumer is empty'
            USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;
    INSERT INTO inbox_messages AS m (consumer, event_id, aggregate_type, aggregate_id, event_type, payload,
        error, attempts, headers, event_version, occurred_at, topic, content_type, dead)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, true)
    ON CONFLICT (consumer, event_id) DO UPDATE SET dead = true, error = $7, attempts = $8;
END
$$;

-- Makes a dead event of a consumer, or all of them, stored and due now, and removes its claim.
-- Answers how many there were.
CREATE OR REPLACE FUNCTION inbox_revive(consumer text, event_id uuid DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    revived uuid[];
BEGIN
    IF coalesce($1, '') = '' THEN
        RAISE EXCEPTION 'no event was revived: consumer is empty' USING ERRCODE = 'check_violation';
    END IF;
    -- The rows are held before their claims go: what another session has revived, and somebody has
    -- accepted since, is not dead any more.
    revived := ARRAY(SELECT m.event_id FROM inbox_messages AS m
        WHERE m.consumer = $1 AND m.dead AND ($2 IS NULL OR m.event_id = $2)
        ORDER BY m.position FOR UPDATE);
    DELETE FROM inbox AS i WHERE i.consumer = $1 AND i.event_id = ANY(revived);
    UPDATE inbox_messages AS m SET dead = false, attempts = 0, due_at = clock_timestamp()
        WHERE m.consumer = $1 AND m.event_id = ANY(revived);
    RETURN cardinality(revived);
END
$$;

-- Removes a consumer's claims that are older, at most so many at a time, and answers how many. Keep them for
-- longer than an event may be delivered again.
CREATE OR REPLACE FUNCTION inbox_prune(consumer text, older_than interval, batch integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
BEGIN
    IF coalesce($1, '') = '' OR $2 IS NULL OR coalesce($3, -1) < 0 THEN
        RAISE EXCEPTION 'nothing was pruned: %', CASE WHEN coalesce($1, '') = '' THEN 'consumer is empty'
            WHEN $2 IS NULL THEN 'older_than is NULL'
            ELSE 'batch is not a number from 0' END USING ERRCODE = 'check_violation';
    END IF;
    -- In the order of places, in which two sessions do not wait for each other in a circle.
    DELETE FROM inbox WHERE ctid = ANY(ARRAY(
        SELECT i.ctid FROM inbox AS i
            WHERE i.consumer = $1 AND i.processed_at < clock_timestamp() - $2
                -- What is dead stays claimed.
                AND NOT EXISTS (SELECT FROM inbox_messages AS m
                    WHERE m.consumer = $1 AND m.event_id = i.event_id AND m.dead)
            LIMIT $3));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;

-- The functions find their tables, and no others, whatever the caller's search_path is.
DO $$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN SELECT p.oid FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname IN ('inbox_accept', 'inbox_accept_all',
            'inbox_advance', 'inbox_store', 'inbox_bury', 'inbox_revive', 'inbox_prune', {'outbox_publish'},
            {'outbox_publish_message'}, {'outbox_publish_all'}, {'outbox_add_partitions'}, {'outbox_drop_partition'})
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', made, current_schema());
    END LOOP;
END
$$;
