-- What is wrong with the sink of a pipeline as a whole, and since when. A relay notes it when it
-- begins and when it is over, so that `postrider status` can say it.
ALTER TABLE {outbox_checkpoints} ADD COLUMN trouble TEXT;
ALTER TABLE {outbox_checkpoints} ADD COLUMN trouble_since TEXT;
