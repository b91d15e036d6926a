
-- Makes the partition of now and so many ahead, and answers how many were missing. Where rows
-- went to the default partition already, they stay, and that stretch of time gets none.
-- It runs as its owner, so that a relay need not own the table.
CREATE OR REPLACE FUNCTION {outbox_add_partitions}(ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
DECLARE
    width CONSTANT interval := '{partition_width}';
    since timestamptz := date_bin(width, clock_timestamp(), '2001-01-01 00:00:00+00');
    name  text;
    added integer := 0;
BEGIN
    -- Each is a table: whoever may call this may not fill the catalog.
    IF ahead NOT BETWEEN 0 AND 366 THEN
        RAISE EXCEPTION 'the number of partitions ahead must be between 0 and 366, not %', ahead
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Two at once would make the same partition.
    PERFORM pg_advisory_xact_lock({lock_key});
    FOR step IN 0..ahead LOOP
        name := {'outbox_p'} || to_char(since AT TIME ZONE 'UTC', 'YYYYMMDDHH24');
        IF to_regclass(quote_ident(name)) IS NULL THEN
            BEGIN
                -- Attached and not made as a partition: that would stop all writers meanwhile.
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE)',
                    name, {'outbox'});
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                    {'outbox'}, name, since, since + width);
                added := added + 1;
            EXCEPTION WHEN check_violation THEN
                NULL;
            END;
        END IF;
        since := since + width;
    END LOOP;
    RETURN added;
END
$$;

DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %I(integer) SET search_path = %I, pg_temp', {'outbox_add_partitions'}, current_schema());
END
$$;
