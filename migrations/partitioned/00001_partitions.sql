-- An outbox in partitions by created_at: made ahead, and dropped as a whole when
-- everything in them is old and proven to be stored. What no partition takes
-- goes into the default one, so that an insert never fails for want of one.
DO $walrelay$
BEGIN
    IF (SELECT relkind FROM pg_catalog.pg_class WHERE oid = '{schema_in_literal}.outbox'::pg_catalog.regclass) <> 'p' THEN
        RAISE EXCEPTION 'table outbox exists and is not partitioned, and PostgreSQL cannot make it so'
            USING ERRCODE = 'wrong_object_type', HINT = 'Make a second one in another schema, and let the relay read both.';
    END IF;
END
$walrelay$;

-- How long a partition is, and how many are made ahead.
CREATE TABLE IF NOT EXISTS {schema}.partitioning (
    every interval NOT NULL,
    ahead integer  NOT NULL,
    one   boolean  NOT NULL DEFAULT true,
    CONSTRAINT partitioning_pkey PRIMARY KEY (one),
    CONSTRAINT partitioning_one CHECK (one),
    CONSTRAINT partitioning_every CHECK (every >= interval '1 second'),
    CONSTRAINT partitioning_ahead CHECK (ahead BETWEEN 1 AND 500)
);

-- Whether a partition has a row that a proof does not see is asked under a lock,
-- so it must be known at once. There is no BRIN class for xid8.
CREATE INDEX IF NOT EXISTS outbox_xid ON {schema}.outbox USING brin (((xid::text)::bigint)) WITH (autosummarize = on);

-- The partitions with their bounds; not the default one.
CREATE OR REPLACE FUNCTION {schema}.partitions()
RETURNS TABLE (part regclass, lower timestamptz, upper timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' AS $walrelay$
    SELECT c.oid::regclass, coalesce(nullif(trim('''' FROM bound[1]), 'MINVALUE')::timestamptz, '-infinity'),
        coalesce(nullif(trim('''' FROM bound[2]), 'MAXVALUE')::timestamptz, 'infinity')
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \((MINVALUE|''[^'']+'')\) TO \((MAXVALUE|''[^'']+'')\)$') bound
    WHERE i.inhparent = '{schema_in_literal}.outbox'::regclass AND bound IS NOT NULL
    ORDER BY 2
$walrelay$;

-- Makes the next partition that is lacking, and gives its name; null if none is.
-- Nobody who writes waits for it: the lock on the outbox lets inserts pass, and
-- only the default partition, where nobody writes as long as there are others,
-- is locked and looked through. One of more than scan bytes is not.
-- A range of which the default partition has rows stays with it.
CREATE OR REPLACE FUNCTION {schema}.make_partition(scan bigint DEFAULT 67108864) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, YMD' SET lock_timeout = '200ms' AS $walrelay$
DECLARE
    root  CONSTANT regclass := '{schema_in_literal}.outbox';
    space CONSTANT text := '{schema_in_literal}';
    copy  CONSTANT text := 'CREATE TABLE %s.%I (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION)';
    step  interval;
    many  integer;
    rest  regclass;
    begun timestamptz;
    ended timestamptz;
    other timestamptz;
    taken boolean;
    name  text;
BEGIN
    SELECT every, ahead INTO STRICT step, many FROM {schema}.partitioning;
    LOCK TABLE ONLY {schema}.outbox IN SHARE UPDATE EXCLUSIVE MODE; -- one at a time
    SELECT nullif(partdefid, 0) INTO rest FROM pg_partitioned_table WHERE partrelid = root;
    IF rest IS NULL THEN
        name := 'outbox_default';
        EXECUTE format(copy, space, name, root);
        EXECUTE format('CREATE UNIQUE INDEX %I ON %s.%I (id)', name || '_id', space, name);
        EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s.%I DEFAULT', root, space, name);
        RETURN name;
    END IF;
    begun := date_bin(step, clock_timestamp(), '2001-01-01 00:00:00+00'); -- a Monday
    WHILE begun <= clock_timestamp() + many * step LOOP
        SELECT max(p.upper) INTO other FROM {schema}.partitions() p WHERE p.lower <= begun AND p.upper > begun;
        IF other IS NOT NULL THEN
            begun := other;
            CONTINUE;
        END IF;
        ended := date_bin(step, begun, '2001-01-01 00:00:00+00') + step;
        SELECT least(ended, min(p.lower)) INTO ended FROM {schema}.partitions() p WHERE p.lower > begun;
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s WHERE created_at >= $1 AND created_at < $2)', rest) INTO taken USING begun, ended;
        IF NOT taken THEN
            IF pg_relation_size(rest) > scan THEN
                RAISE EXCEPTION 'the default partition % holds %, too much to be looked through while its writers wait', rest, pg_size_pretty(pg_relation_size(rest))
                    USING ERRCODE = 'program_limit_exceeded',
                          HINT = 'Run walrelay migrate --partitioned when writers may wait for as long as reading it takes; until then its rows are deleted one by one.';
            END IF;
            name := 'outbox_p' || to_char(begun, CASE WHEN extract(epoch FROM step)::numeric % 86400 = 0 THEN 'YYYYMMDD' ELSE 'YYYYMMDD_HH24MISS' END);
            WHILE to_regclass(format('%s.%I', space, name)) IS NOT NULL LOOP -- one that somebody detached
                name := name || '_';
            END LOOP;
            BEGIN
                EXECUTE format(copy, space, name, root);
                EXECUTE format('CREATE UNIQUE INDEX %I ON %s.%I (id)', name || '_id', space, name);
                EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s.%I FOR VALUES FROM (%L) TO (%L)', root, space, name, begun, ended);
                RETURN name;
            EXCEPTION WHEN check_violation THEN -- a row of it was written just now
                NULL;
            END;
        END IF;
        begun := ended;
    END LOOP;
    RETURN NULL;
END
$walrelay$;

-- Says whether a partition has a row that a proof does not see. With by_age
-- those do not count that came with a dump and carry an xid which this cluster
-- has not reached. The first call may take as long as reading the partition
-- does, and locks nobody out; later ones find the index complete.
CREATE OR REPLACE FUNCTION {schema}.unproven_rows(held regclass, proof pg_snapshot, by_age boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET enable_seqscan = off AS $walrelay$
DECLARE
    unproven boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.partitions() WHERE part = held) THEN
        RAISE EXCEPTION '% is no partition that can be dropped', held USING ERRCODE = 'wrong_object_type';
    END IF;
    BEGIN
        PERFORM brin_summarize_new_values(i.indexrelid) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indexrelid
        WHERE i.indrelid = held AND h.inhparent = '{schema_in_literal}.outbox_xid'::regclass;
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- a vacuum does it just now
    END;
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s WHERE (xid::text)::bigint >= $1 AND (xid::text)::bigint < $2 AND NOT pg_visible_in_snapshot(xid, $3))', held)
    INTO unproven USING (pg_snapshot_xmin(proof)::text)::bigint,
        CASE WHEN by_age THEN (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint ELSE 9223372036854775807 END, proof;
    RETURN unproven;
END
$walrelay$;

-- Waits, not for long, until nobody uses a partition, and then lets nobody write
-- to it until the transaction ends. Who reads may go on: whoever reads the whole
-- outbox has a lock on it, for which drop_partition waits, and must not wait for
-- this partition meanwhile.
CREATE OR REPLACE FUNCTION {schema}.hold_partition(held regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $walrelay$
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.partitions() WHERE part = held) THEN
        RAISE EXCEPTION '% is no partition that can be dropped', held USING ERRCODE = 'wrong_object_type';
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', held);
        RAISE EXCEPTION USING ERRCODE = 'WRFRE';
    EXCEPTION WHEN SQLSTATE 'WRFRE' THEN
        NULL; -- it is free, and the lock is given back
    END;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', held);
END
$walrelay$;

-- Drops a partition that is held. Who writes waits for it as many milliseconds as
-- the caller has patience, a second at the most. What it holds is for the caller
-- to judge: nothing is asked here.
CREATE OR REPLACE FUNCTION {schema}.drop_partition(held regclass, patience integer DEFAULT 100) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $walrelay$
DECLARE
    root CONSTANT regclass := '{schema_in_literal}.outbox';
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.partitions() WHERE part = held) THEN
        RAISE EXCEPTION '% is no partition that can be dropped', held USING ERRCODE = 'wrong_object_type';
    END IF;
    PERFORM set_config('lock_timeout', greatest(1, least(patience, 1000))::text, true); -- until the function ends
    EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', root, held);
    EXECUTE format('DROP TABLE %s', held);
END
$walrelay$;

-- They run with the rights of the tables' owner, who alone may do this.
REVOKE ALL ON FUNCTION {schema}.make_partition(bigint), {schema}.unproven_rows(regclass, pg_snapshot, boolean),
    {schema}.hold_partition(regclass), {schema}.drop_partition(regclass, integer) FROM PUBLIC;
