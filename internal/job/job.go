// Package job keeps what a relay is asked to do beside relaying: heal, backfill,
// replay, requeue. A verb asks by a row in walrelay.job; the relay that holds
// the slot does it and writes how far it is.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Kinds of jobs.
const (
	Backfill = "backfill" // publish the rows that were there before the slot
	Heal     = "heal"     // publish the rows of a gap
	Replay   = "replay"   // publish retained rows again
	Requeue  = "requeue"  // publish dead letters
	Release  = "release"  // publish what was parked
	Discard  = "discard"  // what an operator gave up: done when it is entered, kept as the record of it
)

// States of a job.
const (
	Asked   = "asked"
	Running = "running"
	Done    = "done"
	Failed  = "failed"
)

// A Querier is a SQL connection or transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A Job is one row.
type Job struct {
	ID        int64
	Kind      string
	Arguments Arguments
	State     string
	Progress  Progress
	// FirstSequence is, for each stream, its last sequence before what the job
	// has sent and not accounted for: a crash is followed by a look for the job's
	// events from there.
	FirstSequence map[string]uint64
	Error         string
	AskedBy       string
	At            time.Time
	EndedAt       time.Time // zero: not ended
}

// Arguments say what is to be done. Not each kind uses all.
type Arguments struct {
	Gap           int64     `json:"gap,omitempty"` // of Heal; zero: all open ones
	Since         time.Time `json:"since,omitzero"`
	Until         time.Time `json:"until,omitzero"`
	IDs           []string  `json:"ids,omitempty"`
	AggregateType string    `json:"aggregate_type,omitempty"`
	AggregateID   string    `json:"aggregate_id,omitempty"`
	Letters       []int64   `json:"letters,omitempty"` // of Requeue and Discard
	Gaps          []int64   `json:"gaps,omitempty"`    // of Discard
	NewID         bool      `json:"new_id,omitempty"`
	Reason        string    `json:"reason,omitempty"` // why it was asked for
}

// Progress is how far a job is.
type Progress struct {
	Looked  int64 `json:"looked"`  // rows looked at
	Present int64 `json:"present"` // of them those that were there already
	Sent    int64 `json:"sent"`
	Stored  int64 `json:"stored"`
	Refused int64 `json:"refused"` // those that became or stay dead letters
	Skipped int64 `json:"skipped"` // those that no route publishes, and dead letters that are not to be sent
}

func table(schema string) string { return pgx.Identifier{schema, "job"}.Sanitize() }

// Channel is where a relay of the source listens for what is asked of it.
func Channel(source string) string {
	const longest = 63 // bytes of a name in PostgreSQL, which cuts longer ones
	channel := "walrelay:" + source
	return channel[:min(len(channel), longest)]
}

// Ask enters a job, tells the relay that listens, and gives the job's number.
func Ask(ctx context.Context, q Querier, schema, source, kind string, a Arguments, by string) (int64, error) {
	arguments, err := json.Marshal(a)
	if err != nil {
		return 0, fmt.Errorf("ask for a %s of source %q: %w", kind, source, err)
	}
	var id int64
	err = q.QueryRow(ctx, `WITH asked AS (
			INSERT INTO `+table(schema)+` (source, kind, arguments, asked_by) VALUES ($1, $2, $3, $4) RETURNING id)
		SELECT id FROM asked, pg_notify($5, '')`, source, kind, arguments, by, Channel(source)).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("ask for a %s of source %q: %w", kind, source, err)
	}
	return id, nil
}

// Record enters a job that is done already: who did what to which, and why.
func Record(ctx context.Context, q Querier, schema, source, kind string, a Arguments, by string) error {
	arguments, err := json.Marshal(a)
	if err == nil {
		_, err = q.Exec(ctx, `INSERT INTO `+table(schema)+` (source, kind, arguments, asked_by, state, ended_at)
			VALUES ($1, $2, $3, $4, 'done', clock_timestamp())`, source, kind, arguments, by)
	}
	if err != nil {
		return fmt.Errorf("record a %s of source %q: %w", kind, source, err)
	}
	return nil
}

const columns = `id, kind, arguments, state, progress, first_sequence, coalesce(error, ''), asked_by, at, ended_at`

func scan(row pgx.CollectableRow) (Job, error) {
	var j Job
	var arguments, progress, first []byte
	var ended *time.Time
	err := row.Scan(&j.ID, &j.Kind, &arguments, &j.State, &progress, &first, &j.Error, &j.AskedBy, &j.At, &ended)
	if err != nil {
		return j, err
	}
	if ended != nil {
		j.EndedAt = *ended
	}
	return j, errors.Join(json.Unmarshal(arguments, &j.Arguments), json.Unmarshal(progress, &j.Progress), json.Unmarshal(first, &j.FirstSequence))
}

// Open gives the jobs that have not ended, in the order they were asked for.
func Open(ctx context.Context, q Querier, schema, source string) ([]Job, error) {
	return list(ctx, q, source, `SELECT `+columns+` FROM `+table(schema)+` WHERE source = $1 AND ended_at IS NULL ORDER BY id`, source)
}

// Recent gives the newest jobs, newest first.
func Recent(ctx context.Context, q Querier, schema, source string, limit int) ([]Job, error) {
	return list(ctx, q, source, `SELECT `+columns+` FROM `+table(schema)+` WHERE source = $1 ORDER BY id DESC LIMIT $2`, source, limit)
}

// Read gives one job; false where there is none of that number.
func Read(ctx context.Context, q Querier, schema, source string, id int64) (Job, bool, error) {
	found, err := list(ctx, q, source, `SELECT `+columns+` FROM `+table(schema)+` WHERE source = $1 AND id = $2`, source, id)
	if err != nil || len(found) == 0 {
		return Job{}, false, err
	}
	return found[0], true, nil
}

func list(ctx context.Context, q Querier, source, query string, args ...any) ([]Job, error) {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of source %q: %w", source, err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read the jobs of source %q: %w", source, err)
	}
	return found, nil
}

// A Fence is set first in each transaction: it fails when the relay that writes
// is no longer the one that holds the slot.
type Fence func(ctx context.Context, tx pgx.Tx) error

// Start says that the job runs now, and from where its events are to be looked
// for after a crash.
func Start(ctx context.Context, conn *pgx.Conn, schema string, j *Job, session uuid.UUID, fence Fence) error {
	text, err := json.Marshal(j.FirstSequence)
	if err != nil {
		return fmt.Errorf("start job %d: %w", j.ID, err)
	}
	j.State = Running
	return write(ctx, conn, "start", j.ID, fence, `UPDATE `+table(schema)+` SET state = 'running', session = $2, first_sequence = $3,
		started_at = coalesce(started_at, clock_timestamp()), updated_at = clock_timestamp() WHERE id = $1`, session, text)
}

// Note writes how far the job is, and from where its events are to be looked for.
func Note(ctx context.Context, conn *pgx.Conn, schema string, j *Job, fence Fence) error {
	progress, err := json.Marshal(j.Progress)
	first, err2 := json.Marshal(j.FirstSequence)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("note job %d: %w", j.ID, err)
	}
	return write(ctx, conn, "note", j.ID, fence, `UPDATE `+table(schema)+` SET progress = $2, first_sequence = $3, updated_at = clock_timestamp()
		WHERE id = $1`, progress, first)
}

// End says how the job ended: nil for well.
func End(ctx context.Context, conn *pgx.Conn, schema string, j *Job, why error, fence Fence) error {
	text, err := json.Marshal(j.Progress)
	if err != nil {
		return fmt.Errorf("end job %d: %w", j.ID, err)
	}
	j.State, j.Error = Done, ""
	if why != nil {
		j.State, j.Error = Failed, why.Error()
	}
	return write(ctx, conn, "end", j.ID, fence, `UPDATE `+table(schema)+` SET state = $2, error = nullif($3, ''), progress = $4,
		updated_at = clock_timestamp(), ended_at = clock_timestamp() WHERE id = $1`, j.State, j.Error, text)
}

func write(ctx context.Context, conn *pgx.Conn, what string, id int64, fence Fence, query string, args ...any) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := fence(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, query, append([]any{id}, args...)...)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s job %d: %w", what, id, err)
	}
	return nil
}
