-- What a pipeline has published, of what its cursor has behind it. `aggregate_types` are those that
-- it matches, none if it matches all; NULL until a relay has written them down. `formerly` has
-- those that it matches no more, each with the base of then (all of them under ''). What is visible
-- in `since` was there before the pipeline began, and is none of its business.
ALTER TABLE {outbox_checkpoints}
    ADD COLUMN aggregate_types text[],
    ADD COLUMN formerly jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN since pg_snapshot,
    -- 'oldest': marks of others are to be removed before the pipeline reads.
    ADD COLUMN start text,
    -- A mark that is older is another pipeline's; NULL if that is not known.
    ADD COLUMN began_at timestamptz;
ALTER TABLE {outbox_checkpoints} ALTER COLUMN began_at SET DEFAULT clock_timestamp();

