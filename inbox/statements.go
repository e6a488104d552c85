package inbox

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are the texts of all that a consumer says to its database, with
// the schema's name in them.
type statements struct {
	tables                                                 string
	receive, receiveFenced, receiveMany, receiveManyFenced string
	fresh, freshChecked, freshFenced, holds                string
	failed, uncount, tried, forget                         string
	bury                                                   string
	undecided                                              string
	register, state, verify                                string
	holder, takeOver, lockWorkers, takeWorkers             string
	renew, release                                         string
	park, parked, nextParked, unparked, unpark             string
	requeued, requeueBegun, requeueUnbegun, requeue        string
	resolve, refused, putBack                              string
	covered, keeps                                         string
}

// Every use of a dead letter's event id goes through the index that it has.
const byEvent = `consumer = $1 AND left(event_id, 128) = left($2, 128)
	AND hashtextextended(event_id, 0) = hashtextextended($2, 0) AND event_id = $2 AND resolved_at IS NULL`

// durably gives a transaction whose commit may be lost by a crash one that is
// not. A setting that asks for more than "on" stays. It rides on the receipt's
// statement, so that it costs no round trip.
const durably = `set_config('synchronous_commit', CASE WHEN $ASYNC OR current_setting('synchronous_commit') NOT IN ('off', 'local')
	THEN current_setting('synchronous_commit') ELSE 'on' END, true)`

// newStatements fills in the schema. The receipt's statements also give
// pg_postmaster_start_time: another server than before may have lost commits.
func newStatements(schema string, asyncCommit bool) statements {
	async := "false"
	if asyncCommit {
		async = "true"
	}
	fill := func(s string) string {
		return strings.NewReplacer(
			"$SCHEMA", pgx.Identifier{schema}.Sanitize(),
			"$DURABLY", strings.ReplaceAll(durably, "$ASYNC", async),
			"$SURELY", strings.ReplaceAll(durably, "$ASYNC", "false"),
		).Replace(s)
	}
	one := `INSERT INTO $SCHEMA.receipt (consumer, event_id, stream, sequence)
		SELECT $1::text, $2::text, $3::text, $4::bigint FROM fence
		WHERE NOT EXISTS (SELECT FROM $SCHEMA.consumer_dead_letter WHERE ` + byEvent + `)
		ON CONFLICT DO NOTHING RETURNING 1`
	// Sorted, so that two batches with the same ids wait for one another
	// and do not deadlock.
	many := `INSERT INTO $SCHEMA.receipt (consumer, event_id, stream, sequence)
		SELECT $1::text, e.id, e.stream, e.sequence
		FROM fence, json_to_recordset($2::json) AS e(id text, stream text, sequence bigint)
		WHERE NOT EXISTS (SELECT FROM $SCHEMA.consumer_dead_letter WHERE ` + strings.ReplaceAll(byEvent, "$2", "e.id") + `)
		ORDER BY e.id ON CONFLICT DO NOTHING RETURNING event_id`
	free := `WITH fence AS (SELECT 1), `
	fenced := func(durable, session string) string {
		return `WITH fence AS (SELECT 1 FROM $SCHEMA.consumer WHERE durable = ` + durable + ` AND stream = $3 AND session = ` + session +
			` FOR KEY SHARE), `
	}
	fresh := `fresh AS (` + one + `)
		SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM fresh), pg_postmaster_start_time()::text, $DURABLY`
	freshMany := `fresh AS (` + many + `)
		SELECT (SELECT count(*) FROM fence), coalesce((SELECT json_agg(event_id) FROM fresh), '[]')::text,
			pg_postmaster_start_time()::text, $DURABLY`
	return statements{
		// The last one is a column that came with the newest version.
		tables: fill(`SELECT t.name FROM (VALUES ('receipt'), ('attempt'), ('held'), ('consumer_dead_letter'), ('consumer'), ('fence')) AS t(name)
			WHERE to_regclass(format('%s.%I', $1::text, t.name)) IS NULL
			UNION ALL SELECT 'consumer_dead_letter.history' WHERE NOT EXISTS (SELECT FROM pg_attribute
				WHERE attrelid = to_regclass(format('%s.%I', $1::text, 'consumer_dead_letter')) AND attname = 'history')`),

		receive:           fill(free + fresh),
		receiveFenced:     fill(fenced("$5", "$6") + fresh),
		receiveMany:       fill(free + freshMany),
		receiveManyFenced: fill(fenced("$4", "$5") + freshMany),

		// The same for a connection whose server is known, in less of the
		// database's time: a common table expression costs as much again.
		fresh: fill(`INSERT INTO $SCHEMA.receipt (consumer, event_id, stream, sequence) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`),
		freshChecked: fill(`INSERT INTO $SCHEMA.receipt (consumer, event_id, stream, sequence) SELECT $1::text, $2::text, $3::text, $4::bigint
			WHERE NOT EXISTS (SELECT FROM $SCHEMA.consumer_dead_letter WHERE ` + byEvent + `) ON CONFLICT DO NOTHING`),
		freshFenced: fill(`INSERT INTO $SCHEMA.receipt (consumer, event_id, stream, sequence) SELECT $1::text, $2::text, $3::text, $4::bigint
			FROM $SCHEMA.fence WHERE durable = $5 AND stream = $3 AND session = $6 AND worker = $7
			AND NOT EXISTS (SELECT FROM $SCHEMA.consumer_dead_letter d WHERE d.` + strings.ReplaceAll(byEvent, "resolved_at", "d.resolved_at") + `)
			FOR KEY SHARE OF fence ON CONFLICT DO NOTHING`),
		holds: fill(`SELECT count(*) FROM (SELECT 1 FROM $SCHEMA.consumer WHERE durable = $1 AND stream = $2 AND session = $3 FOR KEY SHARE) AS held`),

		failed: fill(`INSERT INTO $SCHEMA.attempt AS a (consumer, event_id, stream, sequence, attempts, deliveries, error)
			VALUES ($1, $2, $3, $4, 1, $5, $6)
			ON CONFLICT (consumer, event_id) DO UPDATE SET attempts = a.attempts + 1, deliveries = EXCLUDED.deliveries,
				error = EXCLUDED.error, stream = EXCLUDED.stream, sequence = EXCLUDED.sequence, last_at = clock_timestamp()
			RETURNING attempts`),
		uncount: fill(`UPDATE $SCHEMA.attempt SET attempts = attempts - 1 WHERE consumer = $1 AND event_id = $2 AND attempts > 0`),
		tried:   fill(`SELECT attempts FROM $SCHEMA.attempt WHERE consumer = $1 AND event_id = $2`),
		forget:  fill(`DELETE FROM $SCHEMA.attempt WHERE consumer = $1 AND event_id = $2`),

		bury: fill(`WITH buried AS (INSERT INTO $SCHEMA.consumer_dead_letter
			(consumer, event_id, event_type, aggregate, stream, sequence, subject, headers, payload, payload_size, payload_sha256, attempts, reason, error, stored_at)
			SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::text, $8::jsonb, $9::bytea, $10::bigint, $11::bytea, $12::integer, $13::text, $14::text, $15::timestamptz
			WHERE NOT EXISTS (SELECT FROM $SCHEMA.receipt WHERE consumer = $1 AND event_id = $2)
			ON CONFLICT DO NOTHING RETURNING 1)
			SELECT (SELECT count(*) FROM buried), $SURELY`),

		undecided: fill(`SELECT e.id, e.sequence FROM json_to_recordset($2::json) AS e(id text, sequence bigint)
			WHERE NOT EXISTS (SELECT FROM $SCHEMA.receipt r WHERE r.consumer = $1 AND r.event_id = e.id)
			AND NOT EXISTS (SELECT FROM $SCHEMA.consumer_dead_letter d WHERE ` +
			strings.NewReplacer("$2", "e.id", "event_id", "d.event_id", "resolved_at", "d.resolved_at", "consumer =", "d.consumer =").Replace(byEvent) + `)
			AND NOT EXISTS (SELECT FROM $SCHEMA.held h WHERE h.consumer = $3 AND h.stream = $4 AND h.sequence = e.sequence)
			ORDER BY e.sequence`),

		register: fill(`INSERT INTO $SCHEMA.consumer (durable, stream, consumer, stream_created, verified) VALUES ($1, $2, $3, $4::timestamptz, $5)
			ON CONFLICT DO NOTHING`),
		state: fill(`SELECT verified, coalesce(abs(extract(epoch FROM stream_created - $3::timestamptz)) < 0.001, true), consumer,
			pg_postmaster_start_time()::text FROM $SCHEMA.consumer WHERE durable = $1 AND stream = $2`),
		keeps: fill(`UPDATE $SCHEMA.consumer SET kept_for_ever = $2::bigint < 0,
				receipt_retention = CASE WHEN $2::bigint < 0 THEN NULL ELSE $2::bigint * interval '1 millisecond' END
			WHERE consumer = $1 AND (kept_for_ever, receipt_retention) IS DISTINCT FROM
				($2::bigint < 0, CASE WHEN $2::bigint < 0 THEN NULL ELSE $2::bigint * interval '1 millisecond' END)`),
		// What another server than $5 is asked to note, it does not.
		verify: fill(`WITH noted AS (UPDATE $SCHEMA.consumer
			SET verified = $3, stream_created = $4::timestamptz, at = clock_timestamp()
			WHERE durable = $1 AND stream = $2 AND pg_postmaster_start_time()::text = $5 AND ($6 = '' OR session = $6) RETURNING 1)
			SELECT (SELECT count(*) FROM noted)`),
		// A takeover waits for the transactions of the session before.
		holder: fill(`SELECT session FROM $SCHEMA.consumer
			WHERE durable = $1 AND stream = $2 AND (session IN ('', $3) OR lease_until < clock_timestamp()) FOR UPDATE`),
		takeOver: fill(`UPDATE $SCHEMA.consumer SET session = $3, lease_until = clock_timestamp() + $4 * interval '1 millisecond'
			WHERE durable = $1 AND stream = $2`),
		lockWorkers: fill(`SELECT worker FROM $SCHEMA.fence WHERE durable = $1 AND stream = $2 ORDER BY worker FOR UPDATE`),
		takeWorkers: fill(`INSERT INTO $SCHEMA.fence (durable, stream, worker, session)
			SELECT $1::text, $2::text, n, $3::text FROM generate_series(0, greatest($4::integer,
				(SELECT coalesce(max(worker), 0) FROM $SCHEMA.fence WHERE durable = $1 AND stream = $2))) AS n
			ON CONFLICT (durable, stream, worker) DO UPDATE SET session = EXCLUDED.session`),
		renew: fill(`UPDATE $SCHEMA.consumer SET lease_until = clock_timestamp() + $4 * interval '1 millisecond'
			WHERE durable = $1 AND stream = $2 AND session = $3`),
		release: fill(`UPDATE $SCHEMA.consumer SET session = '', lease_until = '-infinity'
			WHERE durable = $1 AND stream = $2 AND session = $3`),

		park: fill(`WITH fence AS (SELECT 1 FROM $SCHEMA.consumer WHERE durable = $1 AND stream = $2 AND session = $9 FOR KEY SHARE),
			parked AS (INSERT INTO $SCHEMA.held
				(consumer, stream, sequence, event_id, aggregate, subject, headers, payload, parked)
				SELECT $1::text, $2::text, $3::bigint, $4::text, $5::text, $6::text, $7::jsonb, $8::bytea, true FROM fence
				ON CONFLICT DO NOTHING RETURNING 1)
			SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM parked), $SURELY`),
		parked: fill(`SELECT aggregate, min(sequence) FROM $SCHEMA.held WHERE consumer = $1 AND stream = $2 AND parked GROUP BY aggregate`),
		nextParked: fill(`SELECT coalesce(min(sequence), 0) FROM $SCHEMA.held
			WHERE consumer = $1 AND stream = $2 AND aggregate = $3 AND sequence > $4 AND parked`),
		unparked: fill(`SELECT subject, headers::text, payload FROM $SCHEMA.held WHERE consumer = $1 AND stream = $2 AND sequence = $3`),
		unpark:   fill(`DELETE FROM $SCHEMA.held WHERE consumer = $1 AND stream = $2 AND sequence = $3`),

		// In the order of the stream, page by page.
		requeued: fill(`SELECT id, stream, sequence, subject, coalesce(aggregate, '') FROM $SCHEMA.consumer_dead_letter
			WHERE consumer = $1 AND resolved_at IS NULL AND requeue_at IS NOT NULL AND (stream, sequence, id) > ($2, $3, $4)
			ORDER BY stream, sequence, id LIMIT 100`),
		requeueBegun: fill(`UPDATE $SCHEMA.consumer_dead_letter SET requeue_tries = requeue_tries + 1 WHERE id = (
			SELECT id FROM $SCHEMA.consumer_dead_letter WHERE id = $1 AND resolved_at IS NULL AND requeue_at IS NOT NULL FOR UPDATE SKIP LOCKED)
			RETURNING requeue_tries`),
		requeueUnbegun: fill(`UPDATE $SCHEMA.consumer_dead_letter SET requeue_tries = requeue_tries - 1 WHERE id = $1 AND requeue_tries > 0`),
		// A dead letter without a payload of its own stays for the stream's.
		requeue: fill(`SELECT event_id, stream, sequence, subject, headers::text, payload, payload_size, payload_sha256
			FROM $SCHEMA.consumer_dead_letter WHERE id = $1 AND resolved_at IS NULL AND requeue_at IS NOT NULL FOR UPDATE SKIP LOCKED`),
		resolve: fill(`UPDATE $SCHEMA.consumer_dead_letter SET resolved_at = clock_timestamp(), resolved_by = coalesce(requeue_by, 'inbox'),
			resolution = 'requeued', requeue_tries = 0, history = history || jsonb_build_object('at', clock_timestamp(), 'did', 'applied')
			WHERE id = $1 AND resolved_at IS NULL`),
		refused: fill(`UPDATE $SCHEMA.consumer_dead_letter SET requeue_at = NULL, requeue_by = NULL, requeue_why = NULL, requeue_tries = 0,
			attempts = attempts + 1, error = $2, reason = $3,
			history = history || jsonb_build_object('at', clock_timestamp(), 'did', 'failed', 'error', $2::text) WHERE id = $1 AND resolved_at IS NULL`),
		putBack: fill(`UPDATE $SCHEMA.consumer_dead_letter SET requeue_at = NULL, requeue_by = NULL, requeue_why = NULL, requeue_tries = 0,
			history = history || jsonb_build_object('at', clock_timestamp(), 'did', 'put back', 'error', $6::text)
			WHERE consumer = $1 AND resolved_at IS NULL AND requeue_at IS NOT NULL AND aggregate = $2 AND (stream, sequence, id) > ($3, $4, $5)`),

		covered: fill(`SELECT (SELECT count(*) FROM $SCHEMA.receipt WHERE consumer = $1 AND stream = $2 AND sequence BETWEEN $3 AND $4)
			+ (SELECT count(*) FROM $SCHEMA.consumer_dead_letter WHERE consumer = $1 AND stream = $2 AND sequence BETWEEN $3 AND $4)`),
	}
}
