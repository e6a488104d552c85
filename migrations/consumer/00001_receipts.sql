-- One row is the proof that a consumer applied an event: it commits together
-- with the effect, or not at all.
CREATE TABLE IF NOT EXISTS {schema}.receipt (
    consumer text        NOT NULL,
    event_id text        NOT NULL,
    stream   text,
    sequence bigint,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT receipt_pkey PRIMARY KEY (consumer, event_id),
    CONSTRAINT receipt_event_id_length CHECK (octet_length(event_id) BETWEEN 1 AND 1024)
);
-- Retention deletes by age; the sequence says what a database that failed
-- over has forgotten.
CREATE INDEX IF NOT EXISTS receipt_at ON {schema}.receipt USING brin (at, sequence) WITH (autosummarize = on);

-- Failed tries of an event, written on their own after the rollback.
CREATE TABLE IF NOT EXISTS {schema}.attempt (
    consumer   text        NOT NULL,
    event_id   text        NOT NULL,
    stream     text,
    sequence   bigint,
    attempts   integer     NOT NULL DEFAULT 0,
    deliveries bigint      NOT NULL DEFAULT 0,
    error      text        NOT NULL DEFAULT '',
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT attempt_pkey PRIMARY KEY (consumer, event_id),
    CONSTRAINT attempt_event_id_length CHECK (octet_length(event_id) BETWEEN 1 AND 1024)
);

-- Events that wait for an earlier one of their aggregate. Where the message
-- was parked its content is here, else it comes from the stream by sequence.
CREATE TABLE IF NOT EXISTS {schema}.held (
    consumer  text        NOT NULL,
    stream    text        NOT NULL,
    sequence  bigint      NOT NULL,
    event_id  text        NOT NULL,
    aggregate text        NOT NULL,
    subject   text,
    headers   jsonb,
    payload   bytea,
    parked    boolean     NOT NULL DEFAULT false,
    held_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT held_pkey PRIMARY KEY (consumer, stream, sequence),
    CONSTRAINT held_event_id_length CHECK (octet_length(event_id) BETWEEN 1 AND 1024),
    CONSTRAINT held_aggregate_length CHECK (octet_length(aggregate) <= 1024)
);
CREATE INDEX IF NOT EXISTS held_aggregate ON {schema}.held (consumer, aggregate, sequence);

-- Calls that no transaction can hold: intent with a lease and a fencing
-- token, then the stored result.
CREATE TABLE IF NOT EXISTS {schema}.effect (
    scope       text        NOT NULL DEFAULT '',
    key         text        NOT NULL,
    request     bytea,
    state       text        NOT NULL,
    token       bigint      NOT NULL DEFAULT 1,
    lease_until timestamptz,
    holder      text        NOT NULL DEFAULT '',
    attempts    integer     NOT NULL DEFAULT 0,
    result      bytea,
    error       text,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at    timestamptz,
    resolved_by text,
    CONSTRAINT effect_pkey PRIMARY KEY (scope, key),
    CONSTRAINT effect_key_length CHECK (octet_length(key) BETWEEN 1 AND 1024),
    CONSTRAINT effect_scope_length CHECK (octet_length(scope) <= 255),
    CONSTRAINT effect_state_known CHECK (state IN ('running', 'done', 'failed', 'uncertain'))
);
COMMENT ON COLUMN {schema}.effect.request IS 'SHA-256 of the request: the same key with another request is an error';
CREATE INDEX IF NOT EXISTS effect_open ON {schema}.effect (at) WHERE state IN ('running', 'uncertain');
CREATE INDEX IF NOT EXISTS effect_at ON {schema}.effect USING brin (at) WITH (autosummarize = on);

-- What a consumer gave up on, written before the message is terminated.
-- event_id is null for a message that carries none.
CREATE TABLE IF NOT EXISTS {schema}.consumer_dead_letter (
    id             bigint      GENERATED ALWAYS AS IDENTITY,
    consumer       text        NOT NULL,
    event_id       text,
    event_type     text,
    aggregate      text,
    stream         text        NOT NULL,
    sequence       bigint      NOT NULL,
    stored_at      timestamptz,
    subject        text        NOT NULL,
    headers        jsonb,
    payload        bytea,
    payload_size   bigint      NOT NULL,
    payload_sha256 bytea,
    attempts       integer     NOT NULL DEFAULT 0,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    requeue_at     timestamptz,
    requeue_by     text,
    resolved_at    timestamptz,
    resolved_by    text,
    resolution     text,
    CONSTRAINT consumer_dead_letter_pkey PRIMARY KEY (id),
    CONSTRAINT consumer_dead_letter_resolved CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);
CREATE UNIQUE INDEX IF NOT EXISTS consumer_dead_letter_event ON {schema}.consumer_dead_letter
    (consumer, left(event_id, 128), hashtextextended(event_id, 0)) WHERE event_id IS NOT NULL AND resolved_at IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS consumer_dead_letter_message ON {schema}.consumer_dead_letter
    (consumer, stream, sequence, stored_at) NULLS NOT DISTINCT WHERE event_id IS NULL;
CREATE INDEX IF NOT EXISTS consumer_dead_letter_open ON {schema}.consumer_dead_letter (consumer, id) WHERE resolved_at IS NULL;

-- For services in other languages: true says that the event is new, and the
-- effect belongs into the same transaction; false, that it was applied.
CREATE OR REPLACE FUNCTION {schema}.receive(
    consumer text, event_id text, stream text DEFAULT NULL, sequence bigint DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $walrelay$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO {schema}.receipt (consumer, event_id, stream, sequence)
    VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$walrelay$;
