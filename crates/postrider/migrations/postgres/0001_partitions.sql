-- Takes what no partition was made for in time, so that a writer never fails.
CREATE TABLE {outbox_p_default} PARTITION OF {outbox} DEFAULT;

-- Makes the partition of now and so many ahead, and answers how many were missing. Where rows
-- went to the default partition already, they stay, and that stretch of time gets none.
-- It runs as its owner, so that a relay need not own the table.
CREATE FUNCTION {outbox_add_partitions}(ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
DECLARE
    width CONSTANT interval := '{partition_width}';
    since timestamptz := date_bin(width, clock_timestamp(), '2001-01-01 00:00:00+00');
    name  text;
    added integer := 0;
BEGIN
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

-- Drops a partition, with its rows, if the snapshot saw all of them and, where rows are marked,
-- all of them are: true. Where that would keep writers waiting it is only emptied: false. NULL if
-- something has come to it since.
CREATE FUNCTION {outbox_drop_partition}(partition text, seen pg_snapshot, marked boolean)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
    whole  boolean := true;
    needed boolean;
BEGIN
    IF $1 = {'outbox_p_default'} OR NOT EXISTS (
        SELECT FROM pg_inherits WHERE inhparent = to_regclass(quote_ident({'outbox'}))
            AND inhrelid = to_regclass(quote_ident($1)))
    THEN
        RAISE EXCEPTION '"%" is not a partition that can be dropped', $1
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- First the outbox and then the partition, as everybody does.
    BEGIN
        EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', {'outbox'});
    EXCEPTION WHEN lock_not_available THEN
        whole := false;
    END;
    EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', $1);
    EXECUTE format('SELECT EXISTS (SELECT FROM %1$I WHERE xid >= pg_snapshot_xmin($1)
            AND NOT pg_visible_in_snapshot(xid, $1))
        OR $2 AND EXISTS (SELECT FROM %1$I WHERE published_at IS NULL)', $1)
        INTO needed USING $2, $3;
    IF needed THEN
        RETURN NULL;
    END IF;
    EXECUTE format(CASE WHEN whole THEN 'DROP TABLE %I' ELSE 'TRUNCATE TABLE %I' END, $1);
    RETURN whole;
END
$$;

-- They run as their owner, so that a relay need not own the table: not for everybody.
REVOKE ALL ON FUNCTION {outbox_add_partitions}(integer), {outbox_drop_partition}(text, pg_snapshot, boolean) FROM PUBLIC;

