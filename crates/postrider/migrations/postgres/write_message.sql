    -- What no slot reads is lost, and nobody would notice. A slot of which nothing can be
    -- confirmed yet is still being made.
    IF NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.database = current_database()
        AND starts_with(s.slot_name::text, 'postrider_') AND s.confirmed_flush_lsn IS NOT NULL
        AND s.wal_status <> 'lost')
    THEN
        RAISE EXCEPTION 'the event was not written: there is no slot that it could be read from'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Run a relay with mode = "cdc", and wait until it reads the log.';
    END IF;
    -- Nobody waits for whoever is first: there may be several.
    IF NOT EXISTS (SELECT FROM {outbox_messages}) THEN
        INSERT INTO {outbox_messages} DEFAULT VALUES;
    END IF;
    PERFORM pg_logical_emit_message(true, 'postrider', convert_to(jsonb_build_object(
        'outbox', format('%I.%I', current_schema(), {'outbox'}),
        'seq', nextval(pg_get_serial_sequence(quote_ident({'outbox'}), 'seq')),
        'id', id, 'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id,
        'event_type', event_type, 'event_version', event_version, 'content_type', content_type,
        'headers', headers, 'topic', topic,
        'occurred_at', floor(extract(epoch FROM occurred_at) * 1000000)::bigint,
        'deliver_after', floor(extract(epoch FROM deliver_after) * 1000000)::bigint
    )::text || E'\n', 'UTF8') || payload);
