package publish_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// takesBatches says whether the server has atomic batches, which came with 2.12.
// On an older one these tests show that a chain goes on without.
func takesBatches(js jetstream.JetStream) bool {
	return !strings.HasPrefix(js.Conn().ConnectedServerVersion(), "2.11.")
}

// inBatches gives how many messages of the stream came in a batch.
func inBatches(t *testing.T, js jetstream.JetStream, n int) (count int) {
	t.Helper()
	s, err := js.Stream(t.Context(), "EV")
	check(t, err)
	for seq := range n {
		m, err := s.GetMsg(t.Context(), uint64(seq+1))
		check(t, err)
		if m.Header.Get(envelope.HeaderBatchID) != "" {
			count++
		}
	}
	return count
}

// I3: what waits goes in batches, what comes alone goes alone.
func TestABacklogGoesInBatchesAndASingleEventAlone(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	js := admin(t, srv.URL())
	createStream(t, js)
	r := batchesOn(t, openConn(t, srv.URL()), 0)
	for i := range 5 {
		r.send(i, i+1)
		r.drain()
	}
	if n := r.stream.Status().Counters.Batches; n != 0 {
		t.Errorf("%d batches for events that came one by one, want none", n)
	}
	// Nothing can be answered, so all but two wait.
	check(t, srv.Kill(t.Context()))
	r.send(5, 3005)
	check(t, srv.Start(t.Context()))
	r.drain()
	wantStored(t, js, 3005)
	batches := r.stream.Status().Counters.Batches
	switch n := inBatches(t, js, 3005); {
	case !takesBatches(js):
		if n > 0 || batches > 0 {
			t.Errorf("%d messages in %d batches on a server that has none", n, batches)
		}
	case n < 2900 || batches < 3 || batches > 100:
		t.Errorf("%d of 3000 messages went in %d batches", n, batches)
	}
}

func TestAStreamWithoutBatchesGetsNone(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	r := batchesOn(t, openConn(t, srv.URL()), 0, unhurried)
	r.send(0, 3000)
	r.drain()
	wantStored(t, js, 3000)
	if st := r.stream.Status(); st.Counters.Batches != 0 || st.Counters.Resyncs != 1 {
		t.Errorf("counters %+v, want no batches and no trouble", st.Counters)
	}
}

// I6: batches that are switched off while they are in use are no trouble that
// lasts.
func TestBatchesThatAreSwitchedOffMeanwhileAreDoneWithout(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := batchesOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 3000)
	r.drain()
	createStream(t, js, func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	r.send(3000, 9000)
	r.drain()
	wantStored(t, js, 9000)
	if len(r.refused) > 0 {
		t.Errorf("refused %+v", r.refused)
	}
}

// I5: one id in a batch that the stream has from somebody else has the whole
// batch refused; only that event becomes a dead letter.
func TestA47OneRefusedIDInABatchIsFoundAndTheOthersAreStored(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	js := admin(t, srv.URL())
	createStream(t, js)
	foreign := nats.NewMsg("ev.foreign")
	foreign.Header.Set(envelope.HeaderMsgID, "id-700")
	_, err := js.PublishMsg(t.Context(), foreign)
	check(t, err)
	r := backlog(t, srv, 2000, nil)
	if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonIDInUse || r.refused[0].Message.MsgID != "id-700" {
		t.Fatalf("refused %+v", r.refused)
	}
	if got := ids(t, js, 2000); len(got) != 2000 || got[0] != "id-700" || got[1] != "id-0" || got[700] != "id-699" || got[701] != "id-701" {
		t.Errorf("stream has %d messages, not those of a chain without the refused one", len(got))
	}
	if n := r.stream.Status().Counters.Batches; takesBatches(js) && n == 0 {
		t.Error("no batch was stored, so none was tested")
	}
}

// I4, I5: an id of our own that is in the batch twice.
func TestA47AnIDThatABatchHasTwiceIsOneDeadLetter(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	js := admin(t, srv.URL())
	createStream(t, js)
	r := backlog(t, srv, 2000, func(i int, m *publish.Message) {
		if i == 901 {
			m.MsgID = "id-900"
		}
	})
	if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonIDInUse || r.refused[0].Message.MsgID != "id-900" {
		t.Fatalf("refused %+v", r.refused)
	}
	wantStored(t, js, 2000, 901)
}

// A row that is too large, for the server or for the stream, is a case of its
// own also among others.
func TestA51ATooLargeRowInABatchIsRefusedAlone(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"over max_msg_size": 3000, "over max_payload": 1<<20 + 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := envtest.NATS(t, testenv.NATSConfig{})
			js := admin(t, srv.URL())
			createStream(t, js, func(c *jetstream.StreamConfig) {
				if size < 1<<20 {
					c.MaxMsgSize = 2000
				}
			})
			r := backlog(t, srv, 2000, func(i int, m *publish.Message) {
				if i == 800 {
					m.Body = make([]byte, size)
				}
			})
			if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonTooLarge || r.refused[0].Message.MsgID != "id-800" {
				t.Fatalf("refused %+v", r.refused)
			}
			wantStored(t, js, 2000, 800)
		})
	}
}

// A server's own limit for batches is found out.
func TestAServerThatTakesSmallerBatchesGetsThem(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{ConfigFile: configFile(t, `jetstream { limits { batch { max_msgs: 100 } } }`)})
	js := admin(t, srv.URL())
	createStream(t, js)
	r := backlog(t, srv, 5000, nil)
	wantStored(t, js, 5000)
	if n := r.stream.Status().Counters.Batches; takesBatches(js) && n < 20 {
		t.Errorf("%d batches, want the most of 5000 messages in batches of 62 to 100", n)
	}
}

// backlog has n events wait while the server is away, so that they go in
// batches, and waits until they are settled.
func backlog(t *testing.T, srv *testenv.NATS, n int, change func(i int, m *publish.Message)) *rig {
	t.Helper()
	r := batchesOn(t, openConn(t, srv.URL()), 0)
	check(t, srv.Kill(t.Context()))
	r.sendEach(0, n, func(i int) (uint64, envelope.Position, *publish.Message) {
		tx, pos, m := event(i)
		if change != nil {
			change(i, m)
		}
		return tx, pos, m
	})
	check(t, srv.Start(t.Context()))
	r.drain()
	return r
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
