package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// replayed runs walrelay replay and gives the progress of its job.
func replayed(t *testing.T, w *fixture.World, want int, flags ...string) job.Progress {
	t.Helper()
	args := append([]string{"replay", "--json", "--yes", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source}, flags...)
	code, out := verb(t, nil, args...)
	var report struct {
		State    string       `json:"state"`
		Progress job.Progress `json:"progress"`
	}
	_, object, _ := strings.Cut(out, "\n{") // before it stands what the verb tells people
	if err := json.Unmarshal([]byte("{"+object), &report); err != nil || code != want {
		t.Fatalf("walrelay replay %q = %d, %v, want %d: %s", flags, code, err, want, out)
	}
	return report.Progress
}

// letters runs walrelay deadletters for the relay's own.
func letters(t *testing.T, w *fixture.World, want int, do string, flags ...string) string {
	t.Helper()
	args := append([]string{"deadletters", do, "--yes", "--why", "a test", "--by", "ann", "--database-url", w.DatabaseURL, "--source", w.Source}, flags...)
	code, out := verb(t, nil, args...)
	if code != want {
		t.Fatalf("walrelay deadletters %s %q = %d, want %d: %s", do, flags, code, want, out)
	}
	return out
}

// jobDone waits until the newest job of a kind is done.
func jobDone(t *testing.T, w *fixture.World, kind string) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		state := fixture.Value[string](w, `SELECT coalesce((SELECT state || ' ' || coalesce(error, '') FROM walrelay.job WHERE kind = $1 ORDER BY id DESC LIMIT 1), 'none')`, kind)
		if strings.TrimSpace(state) != job.Done {
			return fmt.Errorf("the newest %s is %s", kind, state)
		}
		return nil
	})
}

// streamOf is the world's stream.
func streamOf(t *testing.T, w *fixture.World) jetstream.Stream {
	t.Helper()
	s, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A49, I5: a duplicate reply means "there already" only where the message is
// really there; one that is gone is sent again once the window has passed, or
// at once under a new id, and receipts see the event all the same.
func TestA49AReplayTellsWhatIsThereFromWhatIsGone(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Start()
	w.Place(3)
	first := w.Stored(3)
	proven(t, w) // else an audit finds what is deleted
	stream := streamOf(t, w)
	if err := stream.DeleteMsg(t.Context(), first[1].Seq); err != nil {
		t.Fatal(err)
	}
	if p := replayed(t, w, 0, "--id", first[0].Event.ID, "--id", first[2].Event.ID); p.Looked != 2 || p.Present != 2 || p.Stored != 0 {
		t.Errorf("the replay of two events that are there: %+v, want them counted as such", p)
	}
	// Within the window, under a new id.
	if p := replayed(t, w, 0, "--id", first[1].Event.ID, "--new-id"); p.Stored != 1 || p.Present != 0 {
		t.Errorf("the replay of an event that is gone, under a new id: %+v, want one stored", p)
	}
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := messages[len(messages)-1]
	if last.Event.ID != first[1].Event.ID || last.Header.Get("Nats-Msg-Id") == first[1].Event.ID || string(last.Body) != string(first[1].Body) ||
		last.Subject != first[1].Subject || !strings.HasPrefix(last.Event.Origin, "replay/") || !last.Event.Late {
		t.Errorf("the last message is %+v, want event %s under a new id, of a replay, late", last, first[1].Event.ID)
	}
	args := []string{"replay", "--yes", "--id", "00000000-0000-4000-8000-00000000000a", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source}
	if code, out := verb(t, nil, args...); code != 1 {
		t.Errorf("walrelay replay of an event that has no row = %d, want 1: %s", code, out)
	}
	w.Place(2)
	w.Check()
}

// A49: within the window, what is gone waits it out and is stored under its own
// id; what is there is not stored again.
func TestA49AReplayWithinTheWindowWaitsItOut(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: func(c *jetstream.StreamConfig) { c.Duplicates = 15 * time.Second }})
	w.Start()
	w.Place(3)
	first := w.Stored(3)
	proven(t, w)
	if err := streamOf(t, w).DeleteMsg(t.Context(), first[1].Seq); err != nil {
		t.Fatal(err)
	}
	if p := replayed(t, w, 0, "--id", first[1].Event.ID); p.Looked != 1 || p.Stored != 1 || p.Present != 0 {
		t.Errorf("the replay of what is gone: %+v, want it stored", p)
	}
	if m := w.Stored(3)[2]; m.Event.ID != first[1].Event.ID || m.Header.Get("Nats-Msg-Id") != m.Event.ID {
		t.Errorf("the last message has id %s, want that of event %s", m.Header.Get("Nats-Msg-Id"), first[1].Event.ID)
	}
	w.Place(2)
	w.Check()
}

// A49: a dead letter is published once its trouble is mended, once, from its
// row or from its copy, and not again by a second requeue.
func TestA49DeadLettersAreRequeuedOnce(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start("--on-unrouted", "dead-letter", "--subject", "nowhere.{aggregate_id}")
	w.Place(4)
	dead := w.Dead(4)
	// Refused again: stays open, with the error of now.
	letters(t, w, 1, "requeue", fmt.Sprint(dead[0].Number))
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.dead_letter WHERE resolved_at IS NULL"); n != 4 {
		t.Fatalf("%d letters are open after a requeue that was refused, want 4", n)
	}
	relay.Stop(fixture.Patience)
	w.Exec("DELETE FROM walrelay.outbox WHERE id::text = $1", dead[1].EventID)
	w.Start()
	w.Place(1)
	letters(t, w, 0, "discard", fmt.Sprint(dead[3].Number))
	letters(t, w, 0, "requeue", "--all")
	messages := w.Stored(4)
	for i, m := range messages[1:] {
		if m.Event.ID != dead[i].EventID || string(m.Body) != string(dead[i].Payload) || m.Position.String() != dead[i].Position ||
			!strings.HasPrefix(m.Event.Origin, "requeue/") || m.Event.CreatedAt == "" || m.Event.AggregateID != "a1" {
			t.Errorf("message %d is %+v, want the event %s of the dead letter", m.Seq, m, dead[i].EventID)
		}
		if n := fixture.Value[int64](w, `SELECT coalesce(sequence, 0) FROM walrelay.dead_letter WHERE id = $1 AND resolution = 'requeued' AND resolved_by = 'ann'`, dead[i].Number); uint64(n) != m.Seq {
			t.Errorf("dead letter %d has sequence %d, want %d", dead[i].Number, n, m.Seq)
		}
	}
	if out := letters(t, w, 0, "requeue", "--all"); !strings.Contains(out, "no open dead letter") {
		t.Errorf("a second requeue says %q, want that there is nothing to do", out)
	}
	letters(t, w, 1, "requeue", fmt.Sprint(dead[0].Number))
	if p := replayed(t, w, 0, "--since", "1h"); p.Skipped != 1 {
		t.Errorf("a replay of all: %+v, want the discarded one passed over", p)
	}
	w.Stored(4)
	if n := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.job WHERE asked_by = 'ann' AND arguments->>'reason' = 'a test'`); n != 3 {
		t.Errorf("%d jobs tell who and why, want 3", n)
	}
}

// I1, I3, I5: the relay is killed in the middle of a replay of 2,000 rows with
// writers beside it: each row comes once, and what is live keeps its order.
func TestAReplayThatIsKilledSendsEachRowOnce(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Flags: []string{"--window", "8"}})
	relay := w.Start()
	insertMany(w, 2000)
	w.Stored(2000)
	proven(t, w) // what is purged before that is taken for lost
	if err := streamOf(t, w).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Eight messages are answered in 20 ms: the kills come before the end.
	if err := w.NATSProxy.Slow(testenv.Downstream, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	load := w.Load(fixture.LoadConfig{Keep: true, Writers: 2, Pause: 200 * time.Millisecond})
	more(t, load, 20)
	replay := []string{
		"replay", "--yes", "--no-wait", "--new-id", "--aggregate", "order/bulk",
		"--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source,
	}
	if code, out := verb(t, nil, replay...); code != 0 {
		t.Fatalf("walrelay replay = %d: %s", code, out)
	}
	kills := 0
	for _, n := range []int{100, 600, 1200} {
		envtest.Eventually(t, fixture.Patience, func() error {
			if sent := ofJobs(t, w); sent < n {
				return fmt.Errorf("%d messages of the replay are stored, want %d", sent, n)
			}
			return nil
		})
		if ofJobs(t, w) < 2000 {
			kills++
		}
		relay.Kill()
		relay = w.Start()
	}
	jobDone(t, w, job.Replay)
	load.Stop()
	if kills == 0 {
		t.Error("the replay was over before the first kill: nothing was drilled")
	}
	w.Check()
	if n := ofJobs(t, w); n != 2000 {
		t.Errorf("%d messages of the replay are stored, want 2000", n)
	}
}

// ofJobs counts the messages that are not live.
func ofJobs(t *testing.T, w *fixture.World) (n int) {
	t.Helper()
	err := w.Each(t.Context(), func(m *fixture.Message) bool {
		if !m.Event.Live() {
			n++
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A62: a stream that was lost whole is filled when an operator asks, at once
// though the relay is halted; or the gap is let be, and no audit finds it again.
func TestA62AHaltedRelayIsAskedToFillAStreamOrToLetItBe(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"filled": {"--missing"},
		"let be": {"--missing", "--discard", "--why", "a test"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{})
			relay := w.Start()
			w.Place(30)
			w.Stored(30)
			proven(t, w)
			config := streamOf(t, w).CachedInfo().Config
			err := errors.Join(w.JetStream.DeleteStream(t.Context(), w.StreamName))
			if err != nil {
				t.Fatal(err)
			}
			makeStream(t, w, config)
			relay.Kill()
			relay = w.Start()
			relay.Await("halted", fixture.Patience)
			gap(t, w, "new-stream", "open")
			args := append([]string{"replay", "--yes", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source}, flags...)
			if code, out := verb(t, nil, args...); code != 0 {
				t.Fatalf("walrelay replay %q = %d: %s", flags, code, out)
			}
			relay.Await("relaying", fixture.Patience)
			if !strings.Contains(relay.Text(), `"looking again at once"`) {
				t.Error("the halted relay went on at its own look and not since it was asked")
			}
			w.Place(5)
			if name == "filled" {
				gap(t, w, "new-stream", "healed")
				w.Stored(35)
				w.Check()
				return
			}
			w.Stored(5)
			relay.Kill()
			w.Start() // an audit follows
			w.Place(1)
			w.Stored(6)
			proven(t, w)
			gap(t, w, "new-stream", "accepted")
		})
	}
}

// I10: what happens to very many events one after the other is a few lines of
// the log and their number.
func TestWhatHappensToManyEventsIsNotLoggedForEach(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	insertMany(w, 300)
	w.Stored(300)
	if p := replayed(t, w, 0, "--since", "1h"); p.Present != 300 {
		t.Errorf("the replay: %+v, want all of it present", p)
	}
	w.Check()
	relay.Stop(fixture.Patience)
	lines, more := 0, 0
	for line := range strings.Lines(relay.Text()) {
		var l struct {
			Msg  string
			More int
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "publishing waits" {
			lines, more = lines+1, more+l.More
		}
	}
	if lines < 2 || lines > 12 || lines+more < 300 {
		t.Errorf("%d lines say that publishing waits, and count %d more; want ten and the number of the others", lines, more)
	}
}
