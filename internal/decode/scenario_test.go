package decode_test

// A scenario is SQL whose effect on the wire is recorded from real servers. It
// starts from nothing: its own database, publication and slot.
type scenario struct {
	name string
	// setup runs before the slot is made. Nothing of it is recorded.
	setup string
	// publication is what follows CREATE PUBLICATION p. Empty means FOR ALL
	// TABLES, with everything that PostgreSQL publishes by default.
	publication string
	// options are further options of pgoutput, such as binary 'true'.
	options []string
	steps   []step
}

// A step is SQL on one of the sessions of a scenario. What it commits is
// recorded before the next one runs.
type step struct {
	session int
	sql     string
	copy    string // what COPY ... FROM STDIN reads
}

func sql(statements ...string) []step {
	steps := make([]step, 0, len(statements))
	for _, s := range statements {
		steps = append(steps, step{sql: s})
	}
	return steps
}

const outboxTable = `CREATE TABLE outbox (id int PRIMARY KEY, topic text NOT NULL, payload jsonb, headers jsonb DEFAULT '{}');`

func scenarios() []scenario {
	return []scenario{
		{
			name:  "a16_truncate",
			setup: outboxTable + `CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES other);`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, 'a', '1')`,
				`TRUNCATE outbox`,
				`TRUNCATE outbox, other CASCADE`,
				`TRUNCATE outbox RESTART IDENTITY`,
				`INSERT INTO outbox VALUES (2, 'a', '2')`,
			),
		},
		typesScenario("a17_types"),
		typesScenario("a17_types_binary", `binary 'true'`),
		idsScenario(),
		{
			name:  "a18_savepoint",
			setup: `CREATE TABLE outbox (id int PRIMARY KEY);`,
			steps: []step{
				{sql: `BEGIN; INSERT INTO outbox SELECT generate_series(1, 500); SAVEPOINT a; INSERT INTO outbox SELECT generate_series(501, 1000)`},
				{session: 1, sql: `INSERT INTO outbox VALUES (2001)`},
				{sql: `ROLLBACK TO a; INSERT INTO outbox SELECT generate_series(1001, 1003)`},
				{sql: `SAVEPOINT b; INSERT INTO outbox VALUES (1501); SAVEPOINT c; INSERT INTO outbox VALUES (1502); ROLLBACK TO b`},
				{session: 1, sql: `BEGIN; INSERT INTO outbox VALUES (2002); ROLLBACK`},
				{sql: `DO $$BEGIN INSERT INTO outbox VALUES (1601); RAISE 'no'; EXCEPTION WHEN OTHERS THEN INSERT INTO outbox VALUES (1004); END$$`},
				{sql: `SAVEPOINT d; INSERT INTO outbox VALUES (1005); RELEASE d`},
				{session: 1, sql: `INSERT INTO outbox VALUES (2003)`},
				{sql: `COMMIT`},
			},
		},
		{
			name:  "a18_two_phase",
			setup: outboxTable,
			steps: sql(
				`BEGIN; INSERT INTO outbox VALUES (1, 'a', '1'); PREPARE TRANSACTION 'first'`,
				`BEGIN; INSERT INTO outbox VALUES (2, 'a', '2'); PREPARE TRANSACTION 'second'`,
				`INSERT INTO outbox VALUES (3, 'a', '3')`,
				`ROLLBACK PREPARED 'first'`,
				`COMMIT PREPARED 'second'`,
			),
		},
		{
			name: "a20_toast",
			setup: `CREATE TABLE outbox (id int PRIMARY KEY, topic text, payload text, headers text);
				ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL;`,
			steps: sql(
				`BEGIN; INSERT INTO outbox VALUES (1, 'a', repeat('0123456789', 300), '{}'); UPDATE outbox SET topic = 'b'; COMMIT`,
				`UPDATE outbox SET headers = '{"a": 1}'`,
				`UPDATE outbox SET payload = 'short'`,
			),
		},
		changesScenario(),
		{
			name:        "a21_insert_only",
			setup:       outboxTable + `ALTER TABLE outbox DROP CONSTRAINT outbox_pkey;`,
			publication: `FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, 'a', '1')`,
				`UPDATE outbox SET topic = 'b'`,
				`BEGIN; INSERT INTO outbox VALUES (2, 'a', '2'); DELETE FROM outbox; COMMIT`,
				`TRUNCATE outbox`,
			),
		},
		{
			name:        "a21_identity",
			setup:       outboxTable + `CREATE UNIQUE INDEX by_topic ON outbox (topic);`,
			publication: `FOR TABLE outbox`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, 'a', '1')`,
				`UPDATE outbox SET id = 2`,
				`ALTER TABLE outbox REPLICA IDENTITY USING INDEX by_topic`,
				`UPDATE outbox SET topic = 'b'`,
				`ALTER TABLE outbox REPLICA IDENTITY FULL`,
				`UPDATE outbox SET topic = 'c'`,
				`DELETE FROM outbox`,
				`ALTER TABLE outbox REPLICA IDENTITY NOTHING`,
				`INSERT INTO outbox VALUES (3, 'a', '1')`,
			),
		},
		ddlScenario(),
		{
			name: "a22_names",
			setup: `CREATE SCHEMA "order"; CREATE SCHEMA "My ""Schema";
				CREATE TABLE "order"."Out.Box" ("Id" int PRIMARY KEY, "from" text, "ü" text);
				CREATE TABLE "My ""Schema".t (id int PRIMARY KEY); CREATE TABLE nothing (); CREATE TABLE "select" (id int);`,
			steps: sql(
				`INSERT INTO "order"."Out.Box" VALUES (1, 'a', 'ß')`,
				`INSERT INTO "My ""Schema".t VALUES (1)`,
				`INSERT INTO nothing DEFAULT VALUES`,
				`INSERT INTO "select" VALUES (1)`,
			),
		},
		{
			name: "a22_column_list",
			setup: outboxTable + `ALTER TABLE outbox ADD seq bigint GENERATED ALWAYS AS IDENTITY,
				ADD size int GENERATED ALWAYS AS (length(topic)) STORED;`,
			publication: `FOR TABLE outbox (id, payload, seq) WHERE (id > 1) WITH (publish = 'insert')`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, 'filtered', '1')`,
				`INSERT INTO outbox VALUES (2, 'sent', '2')`,
				`ALTER PUBLICATION p SET TABLE outbox`,
				`INSERT INTO outbox VALUES (3, 'sent whole', '3')`,
				`ALTER PUBLICATION p DROP TABLE outbox`,
				`INSERT INTO outbox VALUES (4, 'never sent', '4')`,
			),
		},
		partitionScenario("a23_partition_leaf", `FOR TABLE outbox`),
		partitionScenario("a23_partition_root", `FOR TABLE outbox WITH (publish_via_partition_root = true)`),
		{
			name:  "a25_odd_values",
			setup: `CREATE TABLE outbox (id int PRIMARY KEY, at timestamptz, on_day date, n numeric, f float8, g float4, i interval);`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, 'infinity', 'infinity', 'NaN', 'Infinity', '-0', '1 year -2 days')`,
				`INSERT INTO outbox VALUES (2, '-infinity', '-infinity', 'Infinity', '-Infinity', 'NaN', '-00:00:00.000001')`,
				`INSERT INTO outbox VALUES (3, '0044-03-15 12:00:00+00 BC', '0044-03-15 BC', repeat('9', 1000)::numeric, 1e300, 0.1, '178000000 years')`,
				`INSERT INTO outbox VALUES (4, '294276-12-31 23:59:59.999999+00', '5874897-12-31', '-0.000', '-0', 1e-45, '0')`,
				`INSERT INTO outbox VALUES (5, '2026-01-02 03:04:05+05:45', '2026-01-02', 1e-20, 5e-324, 3.4028235e38, 'P1Y2M3DT4H5M6.7S')`,
			),
		},
		{
			name:  "a26_json",
			setup: `CREATE TABLE outbox (id int PRIMARY KEY, b jsonb, j json);`,
			steps: sql(
				`INSERT INTO outbox VALUES (1, '{"n":12345678901234567890123,"d":1.10,"e":1e400}', '{"n":12345678901234567890123,"d":1.10,"e":1e400}')`,
				`INSERT INTO outbox VALUES (2, '{"b":1,"a":2,"b":3}', E'{"b":1,  "a":2,\n\t"b":3 }')`,
				`INSERT INTO outbox VALUES (3, '{"n":1234567890123456789,"t":true,"x":null,"o":{"a":[1,2]}}', '"\u00e9\ud83d\ude00é\\"')`,
			),
		},
		{
			name:  "a27_null_and_empty",
			setup: `CREATE TABLE outbox (id int PRIMARY KEY, b jsonb, j json, t text, y bytea, headers jsonb);`,
			steps: sql(
				`INSERT INTO outbox VALUES (1)`,
				`INSERT INTO outbox VALUES (2, 'null', 'null', '', '', 'null')`,
				`INSERT INTO outbox VALUES (3, '{}', '{}', 'null', '\x00', '[]')`,
				`INSERT INTO outbox VALUES (4, '""', '""', ' ', '\x00ff5c', '"text"')`,
			),
		},
		{
			name:    "messages",
			setup:   outboxTable,
			options: []string{`messages 'true'`},
			steps: sql(
				`BEGIN; SELECT pg_logical_emit_message(true, 'orders', 'in the transaction'); INSERT INTO outbox VALUES (1, 'a', '1'); COMMIT`,
				`BEGIN; SELECT pg_logical_emit_message(false, 'orders', 'at once'); INSERT INTO outbox VALUES (2, 'a', '2'); ROLLBACK`,
				`SELECT pg_logical_emit_message(true, '', '')`,
				`SELECT pg_logical_emit_message(false, 'bytes', '\x0001ff'::bytea)`,
			),
		},
		{
			name:  "origin",
			setup: outboxTable + `SELECT pg_replication_origin_create('upstream_' || current_database());`,
			steps: sql(
				`SELECT pg_replication_origin_session_setup('upstream_' || current_database());
				BEGIN; SELECT pg_replication_origin_xact_setup('0/1234', '2026-01-02 03:04:05+00'); INSERT INTO outbox VALUES (1, 'a', '1'); COMMIT`,
				`SELECT pg_replication_origin_session_reset(); INSERT INTO outbox VALUES (2, 'a', '2')`,
			),
		},
	}
}

func idsScenario() scenario {
	return scenario{
		name: "a17_ids",
		setup: `CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN event_id AS uuid; CREATE TYPE pair AS (a int, b text);
			CREATE TABLE by_bigint (id bigint PRIMARY KEY); CREATE TABLE by_uuid (id uuid PRIMARY KEY); CREATE TABLE by_text (id text PRIMARY KEY);
			CREATE TABLE by_numeric (id numeric PRIMARY KEY); CREATE TABLE by_citext (id citext PRIMARY KEY); CREATE TABLE by_enum (id mood PRIMARY KEY);
			CREATE TABLE by_domain (id event_id PRIMARY KEY); CREATE TABLE by_char (id char(10) PRIMARY KEY); CREATE TABLE by_composite (id pair PRIMARY KEY);
			CREATE TABLE by_array (id mood[] PRIMARY KEY);`,
		steps: sql(
			`INSERT INTO by_bigint VALUES (-9223372036854775808)`,
			`INSERT INTO by_uuid VALUES ('0197A3C0-6F5E-7CC3-98C4-DC0C0C07398F')`,
			`INSERT INTO by_text VALUES (E'a\n"b" \U0001F600')`,
			`INSERT INTO by_numeric VALUES (1.10)`,
			`INSERT INTO by_citext VALUES ('MiXed')`,
			`INSERT INTO by_enum VALUES ('glad')`,
			`INSERT INTO by_domain VALUES ('0197a3c0-6f5e-7cc3-98c4-dc0c0c07398f')`,
			`INSERT INTO by_char VALUES ('abc')`,
			`INSERT INTO by_composite VALUES (ROW(1, 'a "b"'))`,
			`INSERT INTO by_array VALUES ('{sad,glad}')`,
		),
	}
}

func typesScenario(name string, options ...string) scenario {
	return scenario{
		name:    name,
		options: options,
		setup: `CREATE EXTENSION hstore; CREATE TYPE mood AS ENUM ('sad', 'glad');
			CREATE TABLE outbox (id uuid PRIMARY KEY, bool bool, int2 int2, int4 int4, int8 int8, float4 float4, float8 float8, numeric numeric(10, 3),
			money money, bpchar char(6), varchar varchar(9), name name, text text, bytea bytea, date date, time time(3), timetz timetz,
			timestamp timestamp, timestamptz timestamptz, interval interval, json json, jsonb jsonb, jsonpath jsonpath, xml xml, bit bit(5),
			varbit varbit, inet inet, cidr cidr, macaddr macaddr, point point, box box, polygon polygon, circle circle, tsvector tsvector,
			tsquery tsquery, int4range int4range, tstzrange tstzrange, multirange int4multirange, ints int[], texts text[], uuids uuid[],
			matrix int[][], jsonbs jsonb[], xid8 xid8, pg_lsn pg_lsn, snapshot pg_snapshot, hstore hstore, mood mood, oid oid);`,
		steps: sql(
			`INSERT INTO outbox VALUES ('0197a3c0-6f5e-7cc3-98c4-dc0c0c07398f', true, -1, 2147483647, 9223372036854775807, 0.1, 0.1, 1.1,
			12.5, 'ab', 'vär', 'name', E'tab\tline\n', '\x00ff5c', '2026-01-02', '03:04:05.678', '03:04:05+02', '2026-01-02 03:04:05.678901',
			'2026-01-02 03:04:05+00', '1 mon 2 days 03:04:05', '{ "a":1.0 }', '{"b":1.10,"a":[]}', '$.a', '<a>&amp;</a>', '10101',
			'101', '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03', '(1,2)', '(1,2),(3,4)', '((0,0),(1,1))', '<(0,0),1>', 'a:1 fat:2', 'fat & rat',
			'[1,5)', '[2026-01-01 00:00:00+00,)', '{[1,3),[5,7)}', '{1,NULL,3}', '{a,"b,c",NULL,""}', '{0197a3c0-6f5e-7cc3-98c4-dc0c0c07398f}',
			'{{1,2},{3,4}}', ARRAY['{"a":1}'::jsonb], '742', '16/B374D848', '10:20:10,14,15', 'a=>1,b=>NULL', 'glad', 42)`,
			`INSERT INTO outbox (id) VALUES ('00000000-0000-0000-0000-000000000000')`,
		),
	}
}

func changesScenario() scenario {
	return scenario{
		name: "a21_changes",
		setup: outboxTable + `
			CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.topic := upper(NEW.topic); RETURN NEW; END$$;
			CREATE FUNCTION double() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
				IF NEW.id < 1000 THEN INSERT INTO outbox VALUES (NEW.id + 1000, 'second', NEW.payload); END IF; RETURN NULL; END$$;`,
		steps: append(sql(
			`BEGIN; INSERT INTO outbox VALUES (1, 'a', '1'); UPDATE outbox SET topic = 'b' WHERE id = 1; COMMIT`,
			`BEGIN; INSERT INTO outbox VALUES (2, 'a', '2'); DELETE FROM outbox WHERE id = 2; COMMIT`,
			`INSERT INTO outbox VALUES (1, 'again', '1') ON CONFLICT DO NOTHING`,
			`INSERT INTO outbox VALUES (1, 'again', '1') ON CONFLICT (id) DO UPDATE SET topic = EXCLUDED.topic`,
			`INSERT INTO outbox VALUES (3, 'new', '3') ON CONFLICT (id) DO UPDATE SET topic = EXCLUDED.topic`,
			`INSERT INTO outbox SELECT id, 'selected', to_jsonb(id) FROM generate_series(4, 6) id`,
			`MERGE INTO outbox o USING (VALUES (6), (7)) v(id) ON o.id = v.id
				WHEN MATCHED THEN UPDATE SET topic = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'merged', '7')`,
		), append([]step{{sql: `COPY outbox (id, topic, payload) FROM STDIN`, copy: "8\tcopied\t{\"n\": 8}\n9\tcopied\t\\N\n"}}, sql(
			`CREATE TRIGGER stamp BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION stamp()`,
			`INSERT INTO outbox VALUES (10, 'stamped', '10')`,
			`CREATE TRIGGER double AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION double()`,
			`INSERT INTO outbox VALUES (11, 'first', '11')`,
			`DELETE FROM outbox WHERE id > 10`,
		)...)...),
	}
}

func ddlScenario() scenario {
	return scenario{
		name:  "a22_ddl",
		setup: `CREATE TABLE outbox (id int PRIMARY KEY, topic text, payload json, unused text);`,
		steps: sql(
			`INSERT INTO outbox VALUES (1, 'a', '{"n":1}', 'x')`,
			`ALTER TABLE outbox ADD extra text DEFAULT 'filled'`,
			`INSERT INTO outbox VALUES (2, 'a', '{"n":2}', 'x', 'y')`,
			`ALTER TABLE outbox DROP unused`,
			`INSERT INTO outbox VALUES (3, 'a', '{"n":3}', 'y')`,
			`BEGIN; INSERT INTO outbox VALUES (4, 'a', '{"n":4}'); ALTER TABLE outbox DROP payload; ALTER TABLE outbox ADD payload json;
				INSERT INTO outbox VALUES (5, 'a', 'y', '{"n":5}'); COMMIT`,
			`ALTER TABLE outbox RENAME topic TO subj`,
			`INSERT INTO outbox VALUES (6, 'a', 'y', '{"n":6}')`,
			`ALTER TABLE outbox ALTER id TYPE bigint`,
			`INSERT INTO outbox VALUES (7, 'a', 'y', '{"n":7}')`,
			`ALTER TABLE outbox ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')`,
			`INSERT INTO outbox VALUES (8, 'a', 'y', '\x00')`,
			`ALTER TABLE outbox RENAME subj TO topic`,
			`INSERT INTO outbox VALUES (9, 'a', 'y', '\x01')`,
			`ALTER TABLE outbox RENAME TO outbox2`,
			`INSERT INTO outbox2 VALUES (10, 'a', 'y', '\x02')`,
			`CREATE SCHEMA archive; ALTER TABLE outbox2 SET SCHEMA archive`,
			`INSERT INTO archive.outbox2 VALUES (11, 'a', 'y', '\x03')`,
			`DROP TABLE archive.outbox2; CREATE TABLE outbox (payload text, id int PRIMARY KEY)`,
			`INSERT INTO outbox VALUES ('made anew', 12)`,
		),
	}
}

func partitionScenario(name, publication string) scenario {
	return scenario{
		name: name,
		setup: `CREATE TABLE outbox (id int, day date, payload text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
			CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');
			CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT;`,
		publication: publication,
		steps: sql(
			`INSERT INTO outbox VALUES (1, '2026-01-01', 'first')`,
			`INSERT INTO outbox VALUES (2, '2030-01-01', 'default partition')`,
			// Its columns stand in another order than the root's.
			`CREATE TABLE outbox_2 (payload text, day date NOT NULL, id int NOT NULL);
			ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')`,
			`INSERT INTO outbox VALUES (3, '2026-01-02', 'added partition')`,
			`INSERT INTO outbox_1 VALUES (4, '2026-01-01', 'into the leaf')`,
			`UPDATE outbox SET day = '2026-01-02' WHERE id = 4`,
			`ALTER TABLE outbox DETACH PARTITION outbox_1`,
			`INSERT INTO outbox_1 VALUES (5, '2026-01-01', 'detached')`,
			`DROP TABLE outbox_1`,
			`TRUNCATE outbox_2`,
			`INSERT INTO outbox VALUES (6, '2026-01-02', 'last')`,
		),
	}
}
