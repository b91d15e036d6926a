-- Whether one of these events is there, for those who know its id: a writer reads no ids of others. It
-- runs as its owner: not for everybody.
CREATE FUNCTION {outbox_written}(ids uuid[]) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {outbox} AS o WHERE o.id = ANY($1));
END
$$;

-- Events in the log alone were logical messages, which every login of the database can write. They
-- are rows now, inserted and deleted in one transaction.
DROP FUNCTION {outbox_publish_message}(text, text, text, bytea, jsonb, bigint, timestamptz, text, timestamptz, uuid, text);
DROP FUNCTION {outbox_publish_message}(text, text, text, text, jsonb, bigint, timestamptz, text, timestamptz, uuid, text);
DROP FUNCTION {outbox_publish_message}(text, text, text, jsonb, jsonb, bigint, timestamptz, text, timestamptz, uuid, text);
{publish_to_log_functions}
-- These run as their owner: the first reads ids, the second deletes a row and switches the pipelines to
-- events that only the log has. Nobody may call them to whom it is not granted.
DO $$
DECLARE
    made record;
BEGIN
    FOR made IN SELECT p.oid::regprocedure AS name, p.proargtypes[3] AS payload
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname IN ({'outbox_written'}, {'outbox_publish_message'})
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', made.name, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', made.name);
        IF made.payload = 'bytea'::regtype THEN
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', made.name);
        END IF;
    END LOOP;
END
$$;
