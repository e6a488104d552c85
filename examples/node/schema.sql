-- The consumer's own table; `walrelay migrate --consumer` makes that of its receipts.
CREATE TABLE IF NOT EXISTS loyalty (customer text PRIMARY KEY, points bigint NOT NULL DEFAULT 0);
