-- One row for each JetStream consumer that applies events into this database.
-- Everything up to verified was decided (applied, skipped or dead-lettered)
-- before the row was written: a database that failed over has forgotten
-- nothing of it. With order per aggregate, the session is the one process
-- that may apply events; each of its transactions locks the row FOR KEY SHARE,
-- a takeover waits for those.
CREATE TABLE IF NOT EXISTS {schema}.consumer (
    durable        text        NOT NULL,
    stream         text        NOT NULL,
    consumer       text        NOT NULL,
    stream_created timestamptz,
    verified       bigint      NOT NULL DEFAULT 0,
    session        text        NOT NULL DEFAULT '',
    lease_until    timestamptz NOT NULL DEFAULT '-infinity',
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT consumer_pkey PRIMARY KEY (durable, stream)
);

-- The session once more for each of its goroutines, so that their transactions
-- do not all lock one row: sharing a row lock costs a third of the speed.
CREATE TABLE IF NOT EXISTS {schema}.fence (
    durable text    NOT NULL,
    stream  text    NOT NULL,
    worker  integer NOT NULL,
    session text    NOT NULL,
    CONSTRAINT fence_pkey PRIMARY KEY (durable, stream, worker)
);
