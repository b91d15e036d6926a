-- What a pipeline has published, of what its cursor has behind it. `aggregate_types` is a JSON array
-- of those that it matches, empty if it matches all; NULL until a relay has written it down.
-- `formerly` is a JSON object of those that it matches no more, each with the position of then
-- (all of them under ''). Rows up to `since` were there before the pipeline began.
ALTER TABLE {outbox_checkpoints} ADD COLUMN aggregate_types TEXT;
ALTER TABLE {outbox_checkpoints} ADD COLUMN formerly TEXT NOT NULL DEFAULT '{}';
ALTER TABLE {outbox_checkpoints} ADD COLUMN since INTEGER NOT NULL DEFAULT 0;
-- 'unpublished': what was marked when the pipeline began is none of its business.
ALTER TABLE {outbox_checkpoints} ADD COLUMN start TEXT;
-- A mark that is older is another pipeline's; NULL if that is not known.
ALTER TABLE {outbox_checkpoints} ADD COLUMN began_at TEXT;
