-- The outbox: one row is one event. No status columns: an insert is the only
-- thing that makes an event, and the relay writes here only to delete.
-- The checks have names so that an owner can drop or alter them.
CREATE TABLE IF NOT EXISTS {schema}.outbox (
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        jsonb       NOT NULL,
    headers        jsonb       NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    seq            bigint      GENERATED ALWAYS AS IDENTITY,
    CONSTRAINT outbox_pkey PRIMARY KEY ({outbox_key}),
    CONSTRAINT outbox_aggregate_type_length CHECK (octet_length(aggregate_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_aggregate_id_length CHECK (octet_length(aggregate_id) BETWEEN 1 AND 255),
    CONSTRAINT outbox_event_type_length CHECK (octet_length(event_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_headers_object CHECK (jsonb_typeof(headers) = 'object')
){outbox_partition_by};
COMMENT ON TABLE {schema}.outbox IS 'walrelay: each inserted row is one event';

CREATE INDEX IF NOT EXISTS outbox_created_at ON {schema}.outbox USING brin (created_at, seq) WITH (autosummarize = on);

-- An event does not change. A writer whose ON CONFLICT DO UPDATE would have
-- updated a row learns it in his own transaction instead of losing an event.
CREATE OR REPLACE FUNCTION {schema}.refuse_update() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $walrelay$
BEGIN
    RAISE EXCEPTION 'event % of %.% cannot be updated: an event does not change', OLD.id, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Insert a new event with an id of its own; use ON CONFLICT DO NOTHING where the same event may be written twice.';
END
$walrelay$;

DO $walrelay$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger
                   WHERE tgrelid = '{schema_in_literal}.outbox'::pg_catalog.regclass AND tgname = 'outbox_refuse_update') THEN
        CREATE TRIGGER outbox_refuse_update BEFORE UPDATE ON {schema}.outbox
            FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_update();
    END IF;
END
$walrelay$;

-- For services in other languages: writes one event in the caller's
-- transaction and returns its id.
CREATE OR REPLACE FUNCTION {schema}.append(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb,
    headers jsonb DEFAULT '{}', id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $walrelay$
    INSERT INTO {schema}.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
    VALUES (COALESCE($6, gen_random_uuid()), $1, $2, $3, $4, COALESCE($5, '{}'))
    RETURNING id
$walrelay$;

-- What could not be delivered. A row is committed before any later event is
-- sent to the same stream; it is never deleted automatically.
-- position is null on a row that was read from the table. Where an index
-- holds a value of a user's row it holds a bounded part and a hash: an
-- over-long id must not make the record of its refusal impossible.
CREATE TABLE IF NOT EXISTS {schema}.dead_letter (
    id             bigint      GENERATED ALWAYS AS IDENTITY,
    source         text        NOT NULL,
    epoch          integer,
    commit_lsn     pg_lsn,
    idx            bigint,
    position       text        GENERATED ALWAYS AS (epoch::text || '/' || commit_lsn::text || '/' || idx::text) STORED,
    event_id       text,
    "table"        text        NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    subject        text,
    stream         text,
    headers        jsonb,
    columns        jsonb,
    payload        bytea,
    payload_null   boolean     NOT NULL,
    payload_size   bigint      NOT NULL,
    payload_sha256 bytea,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    committed_at   timestamptz,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    parked_behind  bigint,
    resolved_at    timestamptz,
    resolved_by    text,
    resolution     text,
    sequence       bigint,
    late           boolean     NOT NULL DEFAULT false,
    CONSTRAINT dead_letter_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letter_source_position_key UNIQUE (source, position),
    CONSTRAINT dead_letter_parked_behind_fkey FOREIGN KEY (parked_behind) REFERENCES {schema}.dead_letter (id),
    CONSTRAINT dead_letter_position_whole CHECK (num_nulls(epoch, commit_lsn, idx) IN (0, 3)),
    CONSTRAINT dead_letter_resolved CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);
COMMENT ON COLUMN {schema}.dead_letter.columns IS 'further mapped columns of the row by name, each as PostgreSQL''s text or null';
COMMENT ON COLUMN {schema}.dead_letter.headers IS 'the headers column: an object as it was; anything else as a JSON string of its text';
COMMENT ON COLUMN {schema}.dead_letter.late IS 'newer events of its aggregate may be stored: when it is released its message says so';
COMMENT ON COLUMN {schema}.dead_letter.payload IS 'null also where the payload was over 1 MiB: then payload_size and payload_sha256 tell, and the row stays in its table';

CREATE UNIQUE INDEX IF NOT EXISTS dead_letter_source_table_event_id ON {schema}.dead_letter
    (source, "table", left(event_id, 128), hashtextextended(event_id, 0)) WHERE position IS NULL;
CREATE INDEX IF NOT EXISTS dead_letter_event_id ON {schema}.dead_letter USING hash (event_id);
CREATE INDEX IF NOT EXISTS dead_letter_open ON {schema}.dead_letter (source, id) WHERE resolved_at IS NULL;

-- One row a source: who holds the slot (session) and how far he was. Every
-- other write of a relay locks this row FOR SHARE with its session first.
CREATE TABLE IF NOT EXISTS {schema}.witness (
    source        text        NOT NULL,
    slot          text        NOT NULL,
    session       uuid        NOT NULL,
    session_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    system_id     text,
    timeline      bigint,
    epoch         integer     NOT NULL DEFAULT 0,
    confirmed_lsn pg_lsn      NOT NULL DEFAULT '0/0',
    routes_hash   text        NOT NULL DEFAULT '',
    streams       jsonb       NOT NULL DEFAULT '{}',
    host          text        NOT NULL DEFAULT '',
    pid           bigint      NOT NULL DEFAULT 0,
    version       text        NOT NULL DEFAULT '',
    paused_at     timestamptz,
    paused_by     text,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT witness_pkey PRIMARY KEY (source)
) WITH (fillfactor = 50);

-- One row a history of the database: LSNs of two histories are not comparable.
CREATE TABLE IF NOT EXISTS {schema}.epoch (
    source    text        NOT NULL,
    number    integer     NOT NULL,
    system_id text        NOT NULL,
    timeline  bigint      NOT NULL,
    first_lsn pg_lsn      NOT NULL,
    reason    text        NOT NULL,
    begun_by  text        NOT NULL DEFAULT '',
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT epoch_pkey PRIMARY KEY (source, number),
    CONSTRAINT epoch_number_positive CHECK (number > 0)
);

-- Proven snapshots: every outbox row that such a snapshot sees is stored or
-- dead-lettered.
CREATE TABLE IF NOT EXISTS {schema}.proven (
    id       bigint      GENERATED ALWAYS AS IDENTITY,
    source   text        NOT NULL,
    epoch    integer     NOT NULL,
    snapshot pg_snapshot NOT NULL,
    lsn      pg_lsn      NOT NULL,
    streams  jsonb       NOT NULL DEFAULT '{}',
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT proven_pkey PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS proven_source_at ON {schema}.proven (source, at);

-- What was asked for (heal, backfill, replay, requeue, release ...) and is
-- done by the relay that holds the slot.
CREATE TABLE IF NOT EXISTS {schema}.job (
    id             bigint      GENERATED ALWAYS AS IDENTITY,
    source         text        NOT NULL,
    kind           text        NOT NULL,
    arguments      jsonb       NOT NULL DEFAULT '{}',
    state          text        NOT NULL DEFAULT 'asked',
    progress       jsonb       NOT NULL DEFAULT '{}',
    first_sequence jsonb       NOT NULL DEFAULT '{}',
    session        uuid,
    error          text,
    asked_by       text        NOT NULL DEFAULT '',
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at     timestamptz,
    updated_at     timestamptz,
    ended_at       timestamptz,
    CONSTRAINT job_pkey PRIMARY KEY (id)
);
COMMENT ON COLUMN {schema}.job.first_sequence IS 'per stream: the sequence behind which what the job has sent and not accounted for is looked for after a crash';
CREATE INDEX IF NOT EXISTS job_open ON {schema}.job (source, id) WHERE ended_at IS NULL;

-- Committed events that the slot can no longer deliver or the broker no
-- longer has: what was found and how it ended.
CREATE TABLE IF NOT EXISTS {schema}.gap (
    id       bigint      GENERATED ALWAYS AS IDENTITY,
    source   text        NOT NULL,
    kind     text        NOT NULL,
    epoch    integer,
    stream   text,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    "from"   text,
    "to"     text,
    events   bigint,
    state    text        NOT NULL DEFAULT 'open',
    detail   jsonb       NOT NULL DEFAULT '{}',
    job      bigint,
    ended_at timestamptz,
    CONSTRAINT gap_pkey PRIMARY KEY (id),
    CONSTRAINT gap_job_fkey FOREIGN KEY (job) REFERENCES {schema}.job (id)
);
CREATE INDEX IF NOT EXISTS gap_open ON {schema}.gap (source, id) WHERE ended_at IS NULL;
