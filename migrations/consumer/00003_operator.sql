-- What was done about a dead letter, oldest first: who, when, why, and what
-- came of it. A requeue that has been begun and not ended leaves its count of
-- tries: an event that ends its process is not tried for ever.
ALTER TABLE {schema}.consumer_dead_letter
    ADD COLUMN IF NOT EXISTS history jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS requeue_why text,
    ADD COLUMN IF NOT EXISTS requeue_tries integer NOT NULL DEFAULT 0;

-- How long the running service keeps receipts, so that who deletes by hand
-- does not delete more. Null: not known, or for ever if kept_for_ever.
ALTER TABLE {schema}.consumer
    ADD COLUMN IF NOT EXISTS receipt_retention interval,
    ADD COLUMN IF NOT EXISTS kept_for_ever boolean NOT NULL DEFAULT false;
