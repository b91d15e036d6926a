    -- What no slot reads is lost, and nobody would notice. A slot of which nothing can be
    -- confirmed yet is still being made. One that no pipeline of this outbox has written down is
    -- another's, or is dropped by the next relay.
    IF NOT EXISTS (SELECT FROM {outbox_checkpoints} AS c WHERE c.lsn IS NOT NULL)
        OR NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.database = current_database()
            AND starts_with(s.slot_name::text, 'postrider_') AND s.confirmed_flush_lsn IS NOT NULL
            AND s.wal_status <> 'lost')
    THEN
        RAISE EXCEPTION 'the event was not written: there is no slot that it could be read from'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Run a relay with mode = "cdc" and wait until it reads the log, or run postrider slot create.';
    END IF;
    -- Nobody waits for whoever is first: there may be several.
    IF NOT EXISTS (SELECT FROM {outbox_messages}) THEN
        INSERT INTO {outbox_messages} DEFAULT VALUES;
    END IF;
    -- The log keeps the insert. That the row is in the log shows that its writer had the right to
    -- write it, which anything else that a session can put into the log does not.
    DECLARE
        written_at timestamptz;
    BEGIN
        INSERT INTO {outbox} AS o (id, aggregate_type, aggregate_id, event_type, event_version, payload,
            content_type, headers, topic, occurred_at, deliver_after)
        VALUES (id, aggregate_type, aggregate_id, event_type, event_version, payload,
            content_type, headers, topic, occurred_at, deliver_after)
        RETURNING o.created_at INTO written_at;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the event was not written: a trigger or a rule of the outbox keeps it out'
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        DELETE FROM {outbox} AS o WHERE o.id = id AND o.created_at = written_at;
    END;
