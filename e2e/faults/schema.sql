-- A second outbox, with routes of its own.
CREATE TABLE public.bills (LIKE walrelay.outbox INCLUDING ALL);
CREATE TRIGGER e2e_note AFTER INSERT ON public.bills FOR EACH ROW EXECUTE FUNCTION e2e.note('public.bills');

-- The workload calls this. What becomes of an event follows from its id: some
-- go to the second outbox, a few can never be published.
CREATE OR REPLACE FUNCTION e2e.place(event uuid, name text, kind text, filler text, headers jsonb DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v bigint;
    b bytea := uuid_send(event);
BEGIN
    IF get_byte(b, 15) < 4 THEN
        headers := '{"Nats-Rollup": "all"}';
    END IF;
    UPDATE e2e.aggregate SET n = n + 1 WHERE id = name RETURNING n INTO v;
    IF get_byte(b, 14) < 80 THEN
        INSERT INTO public.bills (id, aggregate_type, aggregate_id, event_type, payload, headers)
        VALUES (event, 'bill', name, kind, jsonb_build_object('n', v, 'filler', filler), headers);
    ELSE
        INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
        VALUES (event, 'order', name, kind, jsonb_build_object('n', v, 'filler', filler), headers);
    END IF;
    RETURN v;
END
$$;

-- Who wrote what relays write. A session has one connection for it.
CREATE TABLE e2e.writing (ord bigint GENERATED ALWAYS AS IDENTITY, tbl text NOT NULL, pid int NOT NULL DEFAULT pg_backend_pid());
CREATE FUNCTION e2e.written() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') LIKE 'walrelay % sql' THEN
        INSERT INTO e2e.writing (tbl) VALUES (TG_TABLE_NAME);
    END IF;
    RETURN NEW;
END
$$;
-- A session that takes over waits for the witness, so that counts only once it is
-- done. The others have locked it; before, they count also where the row is there
-- already.
CREATE TRIGGER e2e_written AFTER INSERT OR UPDATE ON walrelay.witness FOR EACH ROW EXECUTE FUNCTION e2e.written();
CREATE TRIGGER e2e_written BEFORE INSERT ON walrelay.dead_letter FOR EACH ROW EXECUTE FUNCTION e2e.written();
CREATE TRIGGER e2e_written BEFORE INSERT ON walrelay.proven FOR EACH ROW EXECUTE FUNCTION e2e.written();
CREATE TRIGGER e2e_written BEFORE INSERT OR UPDATE ON walrelay.gap FOR EACH ROW EXECUTE FUNCTION e2e.written();
