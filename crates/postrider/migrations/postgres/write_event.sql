    INSERT INTO {outbox} (id, aggregate_type, aggregate_id, event_type, event_version, payload,
        content_type, headers, topic, occurred_at, deliver_after)
    VALUES (id, aggregate_type, aggregate_id, event_type, event_version, payload,
        content_type, headers, topic, occurred_at, deliver_after);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the event was not written: a trigger or a rule of the outbox keeps it out'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
