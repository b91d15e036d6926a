-- One inbox serves all outboxes of a schema.
CREATE TABLE IF NOT EXISTS inbox (
    consumer     text NOT NULL,
    event_id     uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);

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

-- The functions find their tables, and no others, whatever the caller's search_path is.
DO $$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN SELECT p.oid FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname IN ('inbox_accept', {'outbox_publish'},
            {'outbox_publish_message'}, {'outbox_publish_all'}, {'outbox_add_partitions'}, {'outbox_drop_partition'})
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', made, current_schema());
    END LOOP;
END
$$;
