-- Roles with no more rights than their work needs. Run this as the owner of the tables, in their
-- schema, and give the roles to the accounts that log in: GRANT {writer} TO shop;
DO $$
DECLARE
    made text;
BEGIN
    FOREACH made IN ARRAY ARRAY[{'writer'}, {'log_writer'}, {'consumer'}, {'relay'}, {'reader'}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = made) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', made);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), made);
    END LOOP;
END
$$;

-- The writer publishes events. It can neither read, change nor delete them, nor choose their number,
-- transaction and time. It reads no ids: with those of others it could publish events that
-- consumers take for theirs. A lost COMMIT is looked up by a function, for ids that it knows.
GRANT INSERT (id, aggregate_type, aggregate_id, event_type, event_version, payload, content_type,
    headers, topic, occurred_at, deliver_after) ON {outbox} TO {writer};
REVOKE SELECT, UPDATE, DELETE, TRUNCATE ON {outbox} FROM {writer};
-- A claim keeps an event from taking effect, for any consumer that it names. Claims are the
-- consumer's: an application that publishes and consumes gets both roles.
REVOKE ALL ON inbox, inbox_versions, inbox_messages FROM {writer};
-- Nor does it take numbers, or say that there are events in the log alone: pipelines would give up no
-- slot any more. That is the log_writer's, which an application gets besides.
REVOKE ALL ON {outbox_messages} FROM {writer};
DO $$
DECLARE
    numbers text := pg_get_serial_sequence(quote_ident({'outbox'}), 'seq');
BEGIN
    IF numbers IS NOT NULL THEN
        EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %I', numbers, {'writer'});
    END IF;
END
$$;

-- The consumer claims events and keeps what it puts aside. It does not see the outbox.
GRANT INSERT (consumer, event_id), SELECT, DELETE ON inbox TO {consumer};
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_versions, inbox_messages TO {consumer};
GRANT SELECT ON postrider_migrations TO {consumer};

-- The relay reads events, keeps its progress and removes what was published. After a restore in
-- another cluster, rows have numbers of transactions that are not of this one: it gives them new ones.
GRANT SELECT, UPDATE (published_at, xid), DELETE ON {outbox} TO {relay};
GRANT SELECT, INSERT, UPDATE, DELETE ON {outbox_failures}, {outbox_checkpoints}, {outbox_leases},
    {outbox_claims}, {outbox_pauses} TO {relay};
GRANT SELECT, DELETE ON inbox TO {relay};
GRANT SELECT (consumer, event_id, dead) ON inbox_messages TO {relay};
GRANT SELECT ON {outbox_messages}, postrider_migrations TO {relay};

-- The reader looks.
GRANT SELECT ON {outbox}, {outbox_failures}, {outbox_checkpoints}, {outbox_leases},
    {outbox_claims}, {outbox_pauses}, {outbox_messages}, inbox, inbox_versions, inbox_messages,
    postrider_migrations TO {reader};

-- The functions, as far as there are any.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT p.oid::regprocedure AS name, g.grantee
        FROM (VALUES ({'outbox_publish'}, {'writer'}), ({'outbox_publish_all'}, {'writer'}),
            ({'outbox_publish_message'}, {'log_writer'}),
            ({'outbox_written'}, {'writer'}),
            ('inbox_accept', {'consumer'}), ('inbox_accept_all', {'consumer'}),
            ('inbox_advance', {'consumer'}), ('inbox_store', {'consumer'}),
            ('inbox_bury', {'consumer'}), ('inbox_revive', {'consumer'}),
            ('inbox_prune', {'consumer'}), ('inbox_prune', {'relay'}),
            ({'outbox_add_partitions'}, {'relay'}), ({'outbox_drop_partition'}, {'relay'})
        ) AS g (name, grantee)
        JOIN pg_proc AS p ON p.proname = g.name
        JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = current_schema()
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', found.name, found.grantee);
    END LOOP;
END
$$;
