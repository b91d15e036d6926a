-- Rows that logical replication brings from another server have the transaction and the number of
-- that server. They get those of this one, so that they are read like any other row; or they are
-- not kept, as the argument says: 'deliver' or 'ignore'. What is marked over there says nothing
-- about what was published from here. The triggers fire where changes are applied and nowhere
-- else. Before an update none fires at all: each row would be locked first, for everybody.
CREATE FUNCTION {outbox_replicated}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF pg_trigger_depth() = 1 AND (NEW.seq <> OLD.seq OR NEW.xid NOT IN (OLD.xid, pg_current_xact_id())) THEN
            UPDATE {outbox} SET seq = OLD.seq, xid = OLD.xid, published_at = OLD.published_at
            WHERE id = NEW.id AND created_at = NEW.created_at;
        END IF;
        RETURN NULL;
    END IF;
    -- A trigger of another table may write events while changes are applied: those are of here.
    IF pg_trigger_depth() > 1 THEN
        RETURN NEW;
    END IF;
    IF NEW.xid <> pg_current_xact_id() AND TG_ARGV[0] = 'ignore' THEN
        RETURN NULL;
    END IF;
    NEW.seq := nextval(pg_get_serial_sequence(quote_ident({'outbox'}), 'seq'));
    NEW.xid := pg_current_xact_id();
    RETURN NEW;
END
$$;

CREATE TRIGGER {outbox_restored} AFTER UPDATE ON {outbox}
    FOR EACH ROW EXECUTE FUNCTION {outbox_replicated}();
ALTER TABLE {outbox} ENABLE REPLICA TRIGGER {outbox_restored};
{replicated_trigger}

-- The function finds its tables, and no others, whatever the search_path of who applies changes is.
DO $$
DECLARE
    made regprocedure;
BEGIN
    SELECT p.oid INTO STRICT made FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname = {'outbox_replicated'};
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', made, current_schema());
END
$$;
