-- Roles for walrelay, each with no more rights than its work takes.
--
-- Run this as a superuser in the database that holds the outbox: once before
-- `walrelay migrate`, and again after each migrate, which makes the tables that
-- the second half gives rights on. Running it again changes nothing else.
--
--   walrelay_admin     makes and upgrades the schema, the publication and the
--                      slot: walrelay migrate, adopt, teardown
--   walrelay_relay     delivers: walrelay run, doctor, status, verify, replay,
--                      deadletters, pause, resume, cleanup
--   walrelay_writer    for the services that write events
--   walrelay_consumer  for the services that apply events with package inbox
--                      (after `walrelay migrate --consumer`, in their database)
--
-- The first two log in; set their passwords with \password, and let them in by
-- pg_hba.conf with the name of the database, which also serves their
-- replication connection:
--
--   hostssl shop walrelay_admin,walrelay_relay 10.0.0.0/8 scram-sha-256
--
-- Never give them a line for the database `replication`: with it a role with
-- REPLICATION may copy the whole cluster. The other two are granted to the
-- roles of your services: GRANT walrelay_writer TO shop_service;
--
-- On a service that keeps REPLICATION to itself (RDS), write LOGIN in place of
-- LOGIN REPLICATION, and GRANT rds_replication TO walrelay_admin, walrelay_relay.
-- If your schema is not walrelay, replace its name. Tables of your own that are
-- to be outboxes: grant walrelay_admin the role that owns them (a publication is
-- made by the owner), and walrelay_relay the rights that are listed for
-- walrelay.outbox below.

DO $walrelay$
DECLARE
    role record;
BEGIN
    FOR role IN SELECT * FROM (VALUES
        ('walrelay_admin',    'LOGIN REPLICATION'),
        ('walrelay_relay',    'LOGIN REPLICATION'),
        ('walrelay_writer',   'NOLOGIN'),
        ('walrelay_consumer', 'NOLOGIN')) AS r (name, attributes)
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role.name) THEN
            EXECUTE format('CREATE ROLE %I %s', role.name, role.attributes);
        END IF;
    END LOOP;
    -- For the schema and the publication.
    EXECUTE format('GRANT CREATE ON DATABASE %I TO walrelay_admin', current_database());
END
$walrelay$;

DO $walrelay$
BEGIN
    IF to_regclass('walrelay.witness') IS NULL THEN
        RAISE NOTICE 'no outbox side yet: run walrelay migrate as walrelay_admin, and then this file again';
        RETURN;
    END IF;
    GRANT USAGE ON SCHEMA walrelay TO walrelay_relay, walrelay_writer;

    -- What the relay remembers. It deletes records of its own that are old
    -- enough, and never a dead letter.
    GRANT SELECT ON walrelay.migration TO walrelay_relay;
    GRANT SELECT, INSERT, UPDATE ON walrelay.witness, walrelay.dead_letter TO walrelay_relay;
    GRANT SELECT, INSERT ON walrelay.epoch TO walrelay_relay;
    GRANT SELECT, INSERT, DELETE ON walrelay.proven TO walrelay_relay;
    GRANT SELECT, INSERT, UPDATE, DELETE ON walrelay.job, walrelay.gap TO walrelay_relay;

    -- Rows are read to heal a gap, and deleted when they are old and stored.
    -- To lock a row takes the right to update some column of it; this one can
    -- never be updated, and a trigger refuses to update the others.
    GRANT SELECT, DELETE, UPDATE (seq) ON walrelay.outbox TO walrelay_relay;

    -- Partitions (walrelay migrate --partitioned) are made and dropped by
    -- functions with the rights of their owner; rows of the default one go one
    -- by one.
    IF to_regclass('walrelay.outbox_default') IS NOT NULL THEN
        GRANT SELECT, DELETE, UPDATE (seq) ON walrelay.outbox_default TO walrelay_relay;
        GRANT EXECUTE ON FUNCTION walrelay.make_partition(bigint), walrelay.unproven_rows(regclass, pg_snapshot, boolean),
            walrelay.hold_partition(regclass), walrelay.drop_partition(regclass, integer) TO walrelay_relay;
    END IF;

    -- A writer cannot say when a row was written or by which transaction: what
    -- is healed and what is deleted is judged by these. It reads no event; id is
    -- for RETURNING and ON CONFLICT.
    GRANT INSERT (id, aggregate_type, aggregate_id, event_type, payload, headers), SELECT (id) ON walrelay.outbox TO walrelay_writer;
END
$walrelay$;

DO $walrelay$
BEGIN
    IF to_regclass('walrelay.receipt') IS NULL THEN
        RETURN; -- no consumer side in this database
    END IF;
    GRANT USAGE ON SCHEMA walrelay TO walrelay_consumer;
    GRANT SELECT ON walrelay.consumer_migration TO walrelay_consumer;
    GRANT SELECT, INSERT, UPDATE, DELETE ON walrelay.receipt, walrelay.attempt, walrelay.held, walrelay.effect, walrelay.fence TO walrelay_consumer;
    GRANT SELECT, INSERT, UPDATE ON walrelay.consumer, walrelay.consumer_dead_letter TO walrelay_consumer;
END
$walrelay$;
