{publish_functions}-- Writes several events in order: a JSON array of objects whose members are the parameters
-- above. Answers their ids, in the same order.
CREATE FUNCTION {outbox_publish_all}(events jsonb) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    event   jsonb;
    member  text;
    written uuid[] := '{}';
BEGIN
    IF events IS NULL OR jsonb_typeof(events) <> 'array' THEN
        RAISE EXCEPTION 'no event was written: events is not a JSON array'
            USING ERRCODE = 'check_violation';
    END IF;
    FOR event IN SELECT e.event FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, position) ORDER BY e.position LOOP
        IF jsonb_typeof(event) <> 'object' THEN
            RAISE EXCEPTION 'no event was written: an event is not a JSON object'
                USING ERRCODE = 'check_violation';
        END IF;
        SELECT m.name INTO member FROM jsonb_object_keys(event) AS m (name) WHERE m.name NOT IN (
            'aggregate_type', 'aggregate_id', 'event_type', 'payload', 'headers',
            'event_version', 'occurred_at', 'topic', 'deliver_after', 'id', 'content_type') LIMIT 1;
        IF member IS NOT NULL THEN
            RAISE EXCEPTION 'no event was written: an event has an unknown member "%"', member
                USING ERRCODE = 'check_violation';
        END IF;
        written := written || {outbox_publish}(
            event ->> 'aggregate_type', event ->> 'aggregate_id', event ->> 'event_type',
            event -> 'payload',
            coalesce(nullif(event -> 'headers', 'null'), '{}'), coalesce((event ->> 'event_version')::bigint, 1),
            coalesce((event ->> 'occurred_at')::timestamptz, clock_timestamp()),
            event ->> 'topic', (event ->> 'deliver_after')::timestamptz, (event ->> 'id')::uuid,
            coalesce(event ->> 'content_type', 'application/json'));
    END LOOP;
    RETURN written;
END
$$;

