-- {publishes} What a relay could not
-- deliver is refused here, before it is written.
CREATE FUNCTION {publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    headers        jsonb DEFAULT '{}',
    event_version  bigint DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    -- The codes from 128 are control characters in Unicode only.
    control CONSTANT text := CASE getdatabaseencoding()
        WHEN 'UTF8' THEN '[\u0001-\u001f\u007f-\u009f]' ELSE '[\u0001-\u001f\u007f]' END;
    oldest  CONSTANT timestamptz := '0001-01-01 00:00:00+00 BC';
    latest  CONSTANT timestamptz := '9999-12-30 22:00:00+00';
    problem text;
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
        WHEN concat(aggregate_type, aggregate_id, event_type, content_type, topic) ~ control THEN
            CASE WHEN aggregate_type ~ control THEN 'aggregate_type' WHEN aggregate_id ~ control THEN 'aggregate_id'
                WHEN event_type ~ control THEN 'event_type' WHEN content_type ~ control THEN 'content_type'
                ELSE 'topic' END || ' contains a control character'
        WHEN payload IS NULL THEN 'payload is NULL'
        WHEN octet_length(payload) > {payload_bytes_max} THEN 'payload has more than {payload_bytes_max} bytes'
        WHEN event_version IS NULL OR event_version NOT BETWEEN 1 AND 4294967295 THEN 'event_version is not a number from 1'
        WHEN headers IS NULL OR jsonb_typeof(headers) <> 'object' THEN 'headers is not a JSON object'
        WHEN occurred_at IS NULL OR occurred_at NOT BETWEEN oldest AND latest THEN 'occurred_at is outside of the years 0 to 9999'
        WHEN deliver_after NOT BETWEEN oldest AND latest THEN 'deliver_after is outside of the years 0 to 9999'
    END;
    IF problem IS NULL AND headers <> '{}' THEN
        SELECT CASE
            WHEN bool_or(jsonb_typeof(h.member) <> 'string') THEN 'headers has a value that is not a string'
            WHEN count(*) > {headers_max} THEN 'headers has more than {headers_max} members'
            WHEN sum(octet_length(h.name) + octet_length(h.member #>> '{}')) > {headers_bytes_max} THEN 'headers has more than {headers_bytes_max} bytes'
            WHEN bool_or(h.name = '') THEN 'a header name is empty'
            WHEN bool_or(octet_length(h.name) > {name_bytes_max}) THEN 'a header name has more than {name_bytes_max} bytes'
            WHEN bool_or(h.name ~ control) THEN 'a header name contains a control character'
            WHEN bool_or((h.member #>> '{}') ~ control) THEN 'a header value contains a control character'
        END INTO problem FROM jsonb_each(headers) AS h (name, member);
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the event was not written: %', problem USING ERRCODE = 'check_violation';
    END IF;
    IF id IS NULL THEN
        id := {new_id};
    END IF;
{write_event}    RETURN id;
END
$$;

-- The same for a payload that is text. JSON is checked, and kept as it was written.
CREATE FUNCTION {publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        text,
    headers        jsonb DEFAULT '{}',
    event_version  bigint DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    IF $11 = 'application/json' THEN
        BEGIN
            PERFORM $4::json;
        EXCEPTION WHEN invalid_text_representation THEN
            RAISE EXCEPTION 'the event was not written: payload is not JSON'
                USING ERRCODE = 'check_violation',
                    HINT = 'Name the content_type if it is not meant to be.';
        END;
    END IF;
    RETURN {publish}($1, $2, $3, convert_to($4, 'UTF8'), $5, $6, $7, $8, $9, $10, $11);
END
$$;

-- The same for a payload that is JSON.
CREATE FUNCTION {publish}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        jsonb,
    headers        jsonb DEFAULT '{}',
    event_version  bigint DEFAULT 1,
    occurred_at    timestamptz DEFAULT clock_timestamp(),
    topic          text DEFAULT NULL,
    deliver_after  timestamptz DEFAULT NULL,
    id             uuid DEFAULT NULL,
    content_type   text DEFAULT 'application/json'
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    RETURN {publish}($1, $2, $3, convert_to($4::text, 'UTF8'), $5, $6, $7, $8, $9, $10, $11);
END
$$;

