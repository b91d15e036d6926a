CREATE TRIGGER {outbox_replicated} BEFORE INSERT ON {outbox}
    FOR EACH ROW EXECUTE FUNCTION {outbox_replicated}('{replicated}');
ALTER TABLE {outbox} ENABLE REPLICA TRIGGER {outbox_replicated};
