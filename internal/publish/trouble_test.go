package publish_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I6.
func TestA50AFullStreamIsWaitedFor(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 100, jetstream.DiscardNew })
	r := startOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 150)
	r.waitFor("is full: maximum messages exceeded")
	r.wantTold(100, 2*time.Second)
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 200, jetstream.DiscardNew })
	r.drain()
	wantStored(t, js, 150)
	if len(r.refused) > 0 {
		t.Errorf("refused %+v, want none", r.refused)
	}
}

// I6.
func TestA58AMissingStreamIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	s := publish.New(openConn(t, srv.URL()), publish.Config{Stream: "EV", Source: source, RetryMost: 100 * time.Millisecond})
	got := make(chan publish.Tail, 1)
	go func() {
		tail, err := s.Tail(limited(t))
		if err != nil {
			t.Errorf("Tail: %v", err)
		}
		got <- tail
	}()
	envtest.Eventually(t, 5*time.Second, func() error {
		if st := s.Status(); !strings.Contains(st.Reason, `stream "EV" does not exist; create it with`) {
			return fmt.Errorf("reason %q", st.Reason)
		}
		return nil
	})
	createStream(t, js)
	if tail := came(t, got); !tail.Empty || tail.Gone || tail.Created.IsZero() || !tail.Facts.Covers("ev.a") || tail.Facts.Covers("other") {
		t.Errorf("Tail() = %+v", tail)
	}
}

func TestA58ASubjectThatNoStreamCoversIsNamed(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 10)
	tx, pos, m := event(10)
	m.Subject = "elsewhere.x"
	check(t, r.stream.Send(limited(t), tx, pos, m))
	r.send(11, 20)
	r.waitFor(`no stream covers subject "elsewhere.x": stream "EV" has subjects ["ev.>"]`)
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Subjects = []string{"ev.>", "elsewhere.>"} })
	r.drain()
	wantStored(t, js, 20)
}

func TestA58AServerWithoutJetStreamIsNamed(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	check(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("server is not ready")
	}
	s := publish.New(openConn(t, srv.ClientURL()), publish.Config{Stream: "EV", Source: source})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = s.Tail(ctx) }()
	envtest.Eventually(t, 10*time.Second, func() error {
		if st := s.Status(); !strings.Contains(st.Reason, "JetStream not enabled") {
			return fmt.Errorf("reason %q", st.Reason)
		}
		return nil
	})
	cancel()
	came(t, ended)
}

const permissionsConf = `
authorization { users: [
  { user: admin, password: secret }
  { user: relay, password: secret, permissions: {
      publish: ["ev.1", "ev.2", "$JS.API.STREAM.INFO.EV", "$JS.API.STREAM.MSG.GET.EV"], subscribe: ["_INBOX.>"] } }
  { user: deaf, password: secret, permissions: { publish: [">"], subscribe: ["nothing"] } }
  { user: mute, password: secret, permissions: { publish: ["ev.>"], subscribe: ["_INBOX.>"] } }
] }
`

func confFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// I6.
func TestA61AMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{ConfigFile: confFile(t, permissionsConf)})
	js := admin(t, srv.URL(), nats.UserInfo("admin", "secret"))
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL(), nats.UserInfo("relay", "secret")), 0)
	for i, subject := range []string{"ev.1", "ev.2", "ev.3", "ev.1"} {
		tx, pos, m := event(i)
		m.Subject = subject
		check(t, r.stream.Send(limited(t), tx, pos, m))
	}
	r.waitFor(`not permitted to publish "ev.3"`)
	// The answers to the others can come after the violation.
	r.wantTold(2, 10*time.Second)
	for user, want := range map[string]string{
		"deaf": "not permitted to subscribe to",
		"mute": `not permitted to publish "$JS.API.STREAM.INFO.EV"`,
	} {
		s := publish.New(openConn(t, srv.URL(), nats.UserInfo(user, "secret")), publish.Config{Stream: "EV", Source: source})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = s.Tail(ctx) }()
		envtest.Eventually(t, 10*time.Second, func() error {
			if st := s.Status(); !strings.Contains(st.Reason, want) {
				return fmt.Errorf("%s: reason %q, want %q", user, st.Reason, want)
			}
			return nil
		})
		cancel()
		came(t, ended)
	}
}

// I10.
func TestA60ARotatedPasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{ConfigFile: confFile(t, "authorization { user: relay, password: new }\n")})
	js := admin(t, srv.URL(), nats.UserInfo("relay", "new"))
	createStream(t, js)
	secret := filepath.Join(t.TempDir(), "password")
	check(t, os.WriteFile(secret, []byte("old-secret"), 0o600))
	conn, err := publish.Open(t.Context(), publish.ConnConfig{URLs: srv.URL(), Options: func() ([]nats.Option, error) {
		b, err := os.ReadFile(secret)
		return []nats.Option{nats.UserInfo("relay", string(b))}, err
	}})
	check(t, err)
	t.Cleanup(conn.Close)
	envtest.Eventually(t, 10*time.Second, func() error {
		if st := conn.Status(); st.Rebuilds == 0 || !strings.Contains(strings.ToLower(st.LastError), "authorization") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	check(t, os.WriteFile(secret, []byte("new"), 0o600))
	r := startOn(t, conn, 0)
	r.send(0, 10)
	r.drain()
	wantStored(t, js, 10)
}

func TestA51AnEventOverTheStreamsSizeIsRefusedAloneAndTheOthersFlow(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
	var r *rig
	r = startOn(t, openConn(t, srv.URL()), 0, func(c *publish.Config) {
		note := c.Refused
		c.Refused = func(ctx context.Context, refused publish.Refused) error {
			if st := r.stream.Status(); r.totalStored() != 50*len(r.refused)+50 || st.State != publish.StateRefusing {
				t.Errorf("Refused with %d stored; status %+v", r.totalStored(), st)
			}
			return note(ctx, refused)
		}
	})
	r.sendEach(0, 150, func(i int) (uint64, envelope.Position, *publish.Message) {
		tx, pos, m := event(i)
		if i == 50 || i == 101 {
			m.Body = make([]byte, 3000)
		}
		return tx, pos, m
	})
	r.drain()
	wantStored(t, js, 150, 50, 101)
	if len(r.refused) != 2 {
		t.Fatalf("refused %d events, want 2", len(r.refused))
	}
	_, pos, m := event(50)
	got := r.refused[0]
	if got.Reason != publish.ReasonTooLarge || got.Position != pos || got.Message.MsgID != m.MsgID || got.Message.Subject != m.Subject ||
		len(got.Message.Body) != 3000 || !slices.Equal(got.Message.Headers, m.Headers) {
		t.Errorf("refused %+v", got)
	}
}

func TestAnErrorOfRefusedEndsRun(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		createStream(t, admin(t, srv.URL()), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
		boom := errors.New("no database")
		r := start(t, openConn(t, srv.URL()), 0, func(c *publish.Config) {
			c.Refused = func(context.Context, publish.Refused) error { return boom }
		})
		tx, pos, m := event(0)
		m.Body = make([]byte, 3000)
		check(t, r.stream.Send(limited(t), tx, pos, m))
		if err := r.runEnds(); !errors.Is(err, boom) {
			t.Errorf("Run() = %v, want %v", err, boom)
		}
	})
}

func TestA51AMessageOverMaxPayloadIsRefused(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js)
		r := start(t, openConn(t, srv.URL()), 0)
		tx, pos, m := event(0)
		m.Body = make([]byte, 1<<20)
		check(t, r.stream.Send(limited(t), tx, pos, m))
		r.send(1, 5)
		r.drain()
		wantStored(t, js, 5, 0)
		if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonTooLarge {
			t.Errorf("refused %+v", r.refused)
		}
	})
}

// I5.
func TestA47AnIdOfAnotherEventIsRefusedWithBothIdentities(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js)
		foreign := nats.NewMsg("ev.foreign")
		foreign.Header.Set(envelope.HeaderMsgID, "id-3")
		if _, err := js.PublishMsg(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		r := start(t, openConn(t, srv.URL()), 0)
		r.send(0, 10)
		r.drain()
		if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonIDInUse || !strings.Contains(r.refused[0].Detail, `"ev.foreign"`) {
			t.Fatalf("refused %+v", r.refused)
		}
		if got := ids(t, js, 10); len(got) != 10 {
			t.Errorf("stream has %v", got)
		}
	})
}

// I5.
func TestA49ADuplicateReplyForOurOwnEventCountsAsStored(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js)
		r := start(t, openConn(t, srv.URL()), 0)
		r.send(0, 10)
		r.drain()
		r.stop()
		r = start(t, r.conn, 10)
		r.send(3, 20) // 3 to 9 are there already
		r.drain()
		wantStored(t, js, 20)
		if got := r.totalStored(); got != 17 {
			t.Errorf("Stored was told of %d, want 17", got)
		}
	})
}

// I3, I5.
func TestA49AnIdWhoseMessageIsGoneIsWaitedForAndNothingOvertakes(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = 3 * time.Second })
		r := start(t, openConn(t, srv.URL()), 0)
		r.send(0, 1)
		r.drain()
		r.stop()
		st, err := js.Stream(t.Context(), "EV")
		check(t, err)
		check(t, st.Purge(t.Context()))
		r = start(t, r.conn, 1)
		r.send(0, 10)
		r.waitFor("the message at sequence 1 is gone")
		r.drain()
		wantStored(t, js, 10)
	})
}

func TestA62AStreamMadeAnewIsAGap(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js)
		r := start(t, openConn(t, srv.URL()), 0)
		r.send(0, 10)
		r.drain()
		check(t, js.DeleteStream(t.Context(), "EV"))
		r.send(10, 20)
		r.waitFor("does not exist")
		createStream(t, js)
		var gap *publish.GapError
		if err := r.runEnds(); !errors.As(err, &gap) || !gap.Recreated() || gap.Acked != 10 || gap.LastSeq != 0 {
			t.Fatalf("Run() = %v, want a gap of a stream made anew", err)
		}
		wantStored(t, js, 0)
	})
}

func TestA62AStreamWithLessThanItAcknowledgedIsAGap(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		createStream(t, admin(t, srv.URL()))
		r := start(t, openConn(t, srv.URL()), 0)
		r.send(0, 10)
		r.drain()
		r.stop()
		r = start(t, r.conn, 15) // what the witness has
		r.sendWhileItRuns(10, 20, event)
		var gap *publish.GapError
		if err := r.runEnds(); !errors.As(err, &gap) || gap.Recreated() || gap.Acked != 15 || gap.LastSeq != 10 {
			t.Fatalf("Run() = %v, want a gap from 10 to 15", err)
		}
	})
}

func TestAnotherWriterIsNamedAndNotFought(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 10)
	r.drain()
	if _, err := js.Publish(t.Context(), "ev.foreign", nil); err != nil {
		t.Fatal(err)
	}
	held := r.sendWhileItRuns(10, 20, event)
	r.waitFor(`another writer on stream "EV": sequence 11 on subject "ev.foreign"`)
	if st := r.stream.Status(); held == 0 || st.InFlight+st.Queued != held || r.totalStored() != 10 {
		t.Errorf("10 stored and %d held are wanted: %+v", held, st)
	}
}

// I1, I3.
func TestAForeignMessageInTheMidstOfOursHidesNoHole(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 1000)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := 1000; ; i++ {
			tx, pos, m := event(i)
			if r.stream.Send(t.Context(), tx, pos, m) != nil || i == 200_000 {
				return
			}
		}
	}()
	if _, err := js.Publish(t.Context(), "ev.foreign", nil); err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, 20*time.Second, func() error {
		select {
		case <-r.ended:
			return nil
		default:
		}
		if st := r.stream.Status(); !strings.Contains(st.Reason, "another writer") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	r.stop()
	came(t, sent)
	// Whatever was reported as stored is a gapless prefix of the stream.
	n := r.totalStored()
	have := map[string]bool{}
	for _, id := range ids(t, js, n) {
		have[id] = true
	}
	for i := range n {
		if id := fmt.Sprint("id-", i); !have[id] {
			t.Fatalf("%s was reported as stored and is not in the stream", id)
		}
	}
	t.Logf("%d stored, then: %v", n, r.runErr)
}

func TestASecondRelayOfTheSameSourceEndsRun(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	conn := openConn(t, srv.URL())
	first, second := startOn(t, conn, 0), startOn(t, conn, 0)
	second.send(50, 51)
	second.drain()
	first.sendWhileItRuns(0, 10, event)
	var other *publish.SecondWriterError
	if err := first.runEnds(); !errors.As(err, &other) || !other.SameSource {
		t.Fatalf("Run() = %v, want a second relay", err)
	}
}

func TestTheTailTellsTheMark(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0)
	tail := func() publish.Tail {
		got, err := publish.New(r.conn, publish.Config{Stream: "EV", Source: source}).Tail(limited(t))
		check(t, err)
		return got
	}
	r.send(0, 5)
	r.drain()
	_, pos, m := event(4)
	if got := tail(); !got.Ours || got.Position != pos || got.MsgID != m.MsgID || got.EventID != m.MsgID || got.LastSeq != 5 || got.Gone {
		t.Errorf("Tail() = %+v", got)
	}
	late := nats.NewMsg("ev.late")
	for name, value := range map[string]string{
		envelope.HeaderSource: source, envelope.HeaderMark: pos.String(), envelope.HeaderOrigin: "replay/7",
		envelope.HeaderMsgID: "wire", envelope.HeaderEventID: "id-1", envelope.HeaderPosition: "1/0/1/0",
	} {
		late.Header.Set(name, value)
	}
	ack, err := js.PublishMsg(t.Context(), late)
	check(t, err)
	if got := tail(); !got.Ours || got.Position != pos || got.MsgID != "wire" || got.EventID != "id-1" || got.Origin != "replay/7" {
		t.Errorf("Tail() of a late event = %+v", got)
	}
	st, err := js.Stream(t.Context(), "EV")
	check(t, err)
	check(t, st.DeleteMsg(t.Context(), ack.Sequence))
	if got := tail(); !got.Gone || got.LastSeq != 6 || got.Empty {
		t.Errorf("Tail() of a deleted message = %+v", got)
	}
}

// inStored gives a rig whose first event is stored, and whose call of Stored for
// it goes on until leave is called.
func inStored(t *testing.T, start starter, conn *publish.Conn) (r *rig, leave func()) {
	t.Helper()
	entered, left := make(chan struct{}), make(chan struct{})
	r = start(t, conn, 0, func(c *publish.Config) {
		c.Stored = func(publish.StoredRun) {
			close(entered)
			<-left
		}
	})
	leave = sync.OnceFunc(func() { close(left) })
	t.Cleanup(leave) // before the rig is stopped
	r.send(0, 1)
	came(t, entered)
	return r, leave
}

// What Run waits for at its end is the call of Stored that is under way, however
// much is still held.
func TestRunEndsWhenStoredHasReturned(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		createStream(t, admin(t, srv.URL()))
		proxy := envtest.Proxy(t, srv.Addr())
		r, leave := inStored(t, start, openConn(t, "nats://"+proxy.Addr()))
		// One event stays in flight: nothing but the end of Stored is news.
		check(t, proxy.Hold(testenv.Downstream))
		tx, pos, m := event(1)
		m.Key = "other"
		check(t, r.stream.Send(limited(t), tx, pos, m))
		r.cancel()
		envtest.Eventually(t, patience, func() error {
			if st := r.stream.Status(); st.State != publish.StateStopped {
				return fmt.Errorf("state %v", st.State)
			}
			return nil
		})
		select {
		case <-r.ended:
			t.Error("Run has ended while Stored was called")
		default:
		}
		leave()
		r.stop()
	})
}

// I5. A dead letter is recorded once Stored was told of what was before it,
// also when nothing else happens then.
func TestAnEventIsRefusedWhenStoredHasReturned(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		createStream(t, admin(t, srv.URL()))
		r, leave := inStored(t, start, openConn(t, srv.URL()))
		tx, pos, m := event(1)
		m.Key, m.Body = "other", make([]byte, 1<<20) // the client refuses it
		check(t, r.stream.Send(limited(t), tx, pos, m))
		envtest.Eventually(t, patience, func() error {
			if st := r.stream.Status(); st.State != publish.StateRefusing {
				return fmt.Errorf("state %v", st.State)
			}
			return nil
		})
		leave()
		r.drain()
		if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonTooLarge {
			t.Errorf("refused %+v", r.refused)
		}
	})
}
