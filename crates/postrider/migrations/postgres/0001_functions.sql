-- Writes one event in the caller's transaction and answers its id. What a relay could not
-- deliver is refused here, before it is written.
CREATE FUNCTION {outbox_publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    headers        jsonb DEFAULT '{}',
    event_version  integer DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    problem text;
    written uuid;
BEGIN
    problem := CASE
        WHEN coalesce(aggregate_type, '') = '' THEN 'aggregate_type is empty'
        WHEN coalesce(aggregate_id, '') = '' THEN 'aggregate_id is empty'
        WHEN coalesce(event_type, '') = '' THEN 'event_type is empty'
        WHEN coalesce(content_type, '') = '' THEN 'content_type is empty'
        WHEN topic = '' THEN 'topic is empty'
        WHEN octet_length(aggregate_type) > {name_bytes_max} THEN 'aggregate_type has more than {name_bytes_max} bytes'
        WHEN octet_length(aggregate_id) > {aggregate_id_bytes_max} THEN 'aggregate_id has more than {aggregate_id_bytes_max} bytes'
        WHEN octet_length(event_type) > {name_bytes_max} THEN 'event_type has more than {name_bytes_max} bytes'
        WHEN octet_length(content_type) > {name_bytes_max} THEN 'content_type has more than {name_bytes_max} bytes'
        WHEN octet_length(topic) > {name_bytes_max} THEN 'topic has more than {name_bytes_max} bytes'
        WHEN payload IS NULL THEN 'payload is NULL'
        WHEN octet_length(payload) > {payload_bytes_max} THEN 'payload has more than {payload_bytes_max} bytes'
        WHEN coalesce(event_version, 0) < 1 THEN 'event_version is less than 1'
        WHEN headers IS NULL OR jsonb_typeof(headers) <> 'object' THEN 'headers is not an object'
        WHEN headers <> '{}' AND EXISTS (SELECT FROM jsonb_each(headers) AS h WHERE jsonb_typeof(h.value) <> 'string')
            THEN 'headers has a value that is not a string'
        WHEN occurred_at IS NULL OR NOT isfinite(occurred_at) THEN 'occurred_at is not a time'
        WHEN NOT isfinite(deliver_after) THEN 'deliver_after is not a time'
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the event was not written: %', problem USING ERRCODE = 'check_violation';
    END IF;
    IF id IS NULL THEN
        INSERT INTO {outbox} (aggregate_type, aggregate_id, event_type, payload, headers,
            event_version, occurred_at, topic, deliver_after, content_type)
        VALUES (aggregate_type, aggregate_id, event_type, payload, headers, event_version,
            occurred_at, topic, deliver_after, content_type)
        RETURNING {outbox}.id INTO written;
    ELSE
        INSERT INTO {outbox} (id, aggregate_type, aggregate_id, event_type, payload, headers,
            event_version, occurred_at, topic, deliver_after, content_type)
        VALUES (id, aggregate_type, aggregate_id, event_type, payload, headers, event_version,
            occurred_at, topic, deliver_after, content_type)
        RETURNING {outbox}.id INTO written;
    END IF;
    RETURN written;
END
$$;

-- The same for a payload that is text. JSON is checked, and kept as it was written.
CREATE FUNCTION {outbox_publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        text,
    headers        jsonb DEFAULT '{}',
    event_version  integer DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    IF $11 = 'application/json' THEN
        PERFORM $4::json;
    END IF;
    RETURN {outbox_publish}($1, $2, $3, convert_to($4, 'UTF8'), $5, $6, $7, $8, $9, $10, $11);
END
$$;

-- The same for a payload that is JSON.
CREATE FUNCTION {outbox_publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        jsonb,
    headers        jsonb DEFAULT '{}',
    event_version  integer DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT {outbox_publish}($1, $2, $3, convert_to($4::text, 'UTF8'), $5, $6, $7, $8, $9, $10);
$$;

-- Writes several events in order: a JSON array of objects whose members are the parameters
-- above. Answers their ids, in the same order.
CREATE FUNCTION {outbox_publish_all}(events jsonb) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    event   jsonb;
    member  text;
    written uuid[] := '{}';
BEGIN
    IF events IS NULL OR jsonb_typeof(events) <> 'array' THEN
        RAISE EXCEPTION 'no event was written: events is not a JSON array'
            USING ERRCODE = 'check_violation';
    END IF;
    FOR event IN SELECT * FROM jsonb_array_elements(events) LOOP
        IF jsonb_typeof(event) <> 'object' THEN
            RAISE EXCEPTION 'no event was written: an event is not a JSON object'
                USING ERRCODE = 'check_violation';
        END IF;
        SELECT key INTO member FROM jsonb_object_keys(event) AS key WHERE key NOT IN (
            'aggregate_type', 'aggregate_id', 'event_type', 'payload', 'headers',
            'event_version', 'occurred_at', 'topic', 'deliver_after', 'id') LIMIT 1;
        IF member IS NOT NULL THEN
            RAISE EXCEPTION 'no event was written: an event has an unknown member "%"', member
                USING ERRCODE = 'check_violation';
        END IF;
        written := written || {outbox_publish}(
            event ->> 'aggregate_type', event ->> 'aggregate_id', event ->> 'event_type',
            event -> 'payload',
            coalesce(event -> 'headers', '{}'), coalesce((event ->> 'event_version')::integer, 1),
            coalesce((event ->> 'occurred_at')::timestamptz, clock_timestamp()),
            event ->> 'topic', (event ->> 'deliver_after')::timestamptz, (event ->> 'id')::uuid);
    END LOOP;
    RETURN written;
END
$$;

-- Claims an event for a consumer, in the transaction that has the event's effect: true for the
-- first time, false if the effect was committed before.
CREATE OR REPLACE FUNCTION inbox_accept(consumer text, event_id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;
