-- What has to be dealt with of parked aggregates: the open letters that point at
-- themselves. The first one of an aggregate may be dealt with already, and one
-- of those that waited behind it refused when its turn came: that one points at
-- itself from then on, and the others go on pointing at the first.
CREATE INDEX IF NOT EXISTS dead_letter_first ON {schema}.dead_letter USING hash (aggregate_id) WHERE resolved_at IS NULL AND parked_behind = id;
