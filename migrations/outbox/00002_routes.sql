-- The routes of the last run, a line each, so that a run with others can say
-- what changed.
ALTER TABLE {schema}.witness
    ADD COLUMN IF NOT EXISTS routes text[] NOT NULL DEFAULT '{}';
