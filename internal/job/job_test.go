package job_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

const schema = "walrelay"

func open(context.Context, pgx.Tx) error { return nil }

func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(envtest.SharedPostgres(t))
	check(t, err)
	check(t, migrations.Apply(t.Context(), cfg, migrations.Config{SchemaOnly: true}, func(migrations.Step) {}))
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// only gives the one open job of a source.
func only(t *testing.T, conn *pgx.Conn, source string) job.Job {
	t.Helper()
	jobs, err := job.Open(t.Context(), conn, schema, source)
	check(t, err)
	if len(jobs) != 1 {
		t.Fatalf("Open(%s) gives %d jobs, want 1", source, len(jobs))
	}
	return jobs[0]
}

// I5: what a crash leaves of a job is what it was asked for, how far it was, and
// from where in each stream its events are to be looked for.
func TestWhatAJobHasNotedIsThereAfterACrash(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	asked := job.Arguments{
		Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), IDs: []string{"a", "b"}, AggregateType: "order", AggregateID: "7",
		Letters: []int64{3, 9}, NewID: true, Reason: "the broker was restored",
	}
	id, err := job.Ask(t.Context(), conn, schema, "shop", job.Replay, asked, "ann")
	check(t, err)
	_, err = job.Ask(t.Context(), conn, schema, "other", job.Heal, job.Arguments{Gap: 4}, "bob")
	check(t, err)

	j := only(t, conn, "shop")
	if j.ID != id || j.Kind != job.Replay || j.State != job.Asked || j.AskedBy != "ann" || !reflect.DeepEqual(j.Arguments, asked) || j.At.IsZero() || !j.EndedAt.IsZero() {
		t.Errorf("asked: %+v", j)
	}
	j.FirstSequence = map[string]uint64{"A": 12, "B": 0}
	check(t, job.Start(t.Context(), conn, schema, &j, uuid.New(), open))
	if now := only(t, conn, "shop"); now.State != job.Running || !maps.Equal(now.FirstSequence, j.FirstSequence) {
		t.Errorf("started: %+v", now)
	}
	j.Progress = job.Progress{Looked: 100, Present: 2, Sent: 97, Stored: 96, Refused: 1, Skipped: 1}
	j.FirstSequence = map[string]uint64{"A": 60, "B": 1 << 62}
	check(t, job.Note(t.Context(), conn, schema, &j, open))
	if now := only(t, conn, "shop"); now.Progress != j.Progress || !maps.Equal(now.FirstSequence, j.FirstSequence) {
		t.Errorf("noted: %+v, want progress %+v and sequences %v", now, j.Progress, j.FirstSequence)
	}
	j.Progress.Stored = 97
	check(t, job.End(t.Context(), conn, schema, &j, errors.New("stream A is gone"), open))
	now, found, err := job.Read(t.Context(), conn, schema, "shop", id)
	if err != nil || !found || now.State != job.Failed || now.Error != "stream A is gone" || now.Progress != j.Progress || now.EndedAt.IsZero() {
		t.Errorf("ended: %+v, %v, %v", now, found, err)
	}
	if still, err := job.Open(t.Context(), conn, schema, "shop"); err != nil || len(still) != 0 {
		t.Errorf("Open() = %+v, %v, want none", still, err)
	}
	if _, found, err := job.Read(t.Context(), conn, schema, "other", id); err != nil || found {
		t.Errorf("Read() gives the job of another source: %v, %v", found, err)
	}
	if other := only(t, conn, "other"); other.Arguments.Gap != 4 {
		t.Errorf("the other source's job: %+v", other)
	}
}

// I5: who has lost the slot writes nothing.
func TestNothingIsWrittenPastTheFence(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	_, err := job.Ask(t.Context(), conn, schema, "shop", job.Heal, job.Arguments{}, "ann")
	check(t, err)
	before := only(t, conn, "shop")
	lost := errors.New("the session is lost")
	fenced := func(context.Context, pgx.Tx) error { return lost }
	for name, write := range map[string]func(j *job.Job) error{
		"Start": func(j *job.Job) error { return job.Start(t.Context(), conn, schema, j, uuid.New(), fenced) },
		"Note":  func(j *job.Job) error { return job.Note(t.Context(), conn, schema, j, fenced) },
		"End":   func(j *job.Job) error { return job.End(t.Context(), conn, schema, j, nil, fenced) },
	} {
		j := before
		j.Progress.Sent, j.FirstSequence = 5, map[string]uint64{"A": 1}
		if err := write(&j); !errors.Is(err, lost) {
			t.Errorf("%s() behind a fence = %v, want %v", name, err, lost)
		}
		if now := only(t, conn, "shop"); !reflect.DeepEqual(now, before) {
			t.Errorf("%s() behind a fence wrote %+v, before it was %+v", name, now, before)
		}
	}
}

// An audit needs what was done, by whom and why, newest first, also where nothing
// had to be done later.
func TestWhatIsRecordedIsDone(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	_, err := job.Ask(t.Context(), conn, schema, "shop", job.Heal, job.Arguments{}, "ann")
	check(t, err)
	check(t, job.Record(t.Context(), conn, schema, "shop", job.Discard, job.Arguments{Gaps: []int64{2}, Reason: "old"}, "bob"))
	only(t, conn, "shop")
	recent, err := job.Recent(t.Context(), conn, schema, "shop", 10)
	check(t, err)
	if len(recent) != 2 || recent[0].Kind != job.Discard || recent[0].State != job.Done || recent[0].AskedBy != "bob" || recent[0].Arguments.Reason != "old" || recent[0].EndedAt.IsZero() {
		t.Errorf("Recent() = %+v, want the discard and then the heal", recent)
	}
	if one, err := job.Recent(t.Context(), conn, schema, "shop", 1); err != nil || len(one) != 1 || one[0].Kind != job.Discard {
		t.Errorf("Recent(1) = %+v, %v, want the discard alone", one, err)
	}
}
