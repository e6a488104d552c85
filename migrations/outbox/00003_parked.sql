-- What waits behind a dead letter. The first letter of a parked aggregate
-- points at itself, the others at the first; an aggregate is parked as long as
-- one of them is open.
CREATE INDEX IF NOT EXISTS dead_letter_parked ON {schema}.dead_letter (parked_behind) WHERE resolved_at IS NULL AND parked_behind IS NOT NULL;
