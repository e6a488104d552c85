package e2e_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I3, I5, A62: a shared stream is put back from a copy of its files, on
// another server of a cluster than the one that the relay is connected to. An event
// that is on its way is in it before anybody knows: behind what was copied, and far
// before where the stream was read from. It is not stored again.
func TestA62WhatAStreamTookBeforeItsLossWasKnownIsStoredOnce(t *testing.T) {
	t.Parallel()
	const stream = "EV"
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{SyncAlways: true})
	config := jetstream.StreamConfig{Name: stream, Subjects: []string{"sent.>"}, Duplicates: time.Second}
	node, other := placed(t, servers, config)
	w := fixture.New(t, fixture.Config{NATSURLs: other.URL(), More: []string{stream}, Shared: []string{stream}, Flags: []string{
		"--ack-timeout", "250ms", "--streams", "[{name: EV, shared: true}]", "--routes", `[{stream: EV, subject: "{event_type}.{aggregate_type}"}]`,
	}})
	relay := w.Start()
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a'), ('b')")
	place := func(aggregate string, times int) {
		for range times {
			w.Exec("SELECT e2e.place(gen_random_uuid(), $1, 'sent', '') FROM generate_series(1, 10)", aggregate)
		}
		proven(t, w)
	}
	place("a", 15)
	var folder string
	copied := t.TempDir() + "/copy"
	restart(t, node, func() {
		found, err := filepath.Glob(node.StoreDir() + "/*/streams/" + stream)
		if err != nil || len(found) != 1 {
			t.Fatalf("folders of stream %s: %v, %v", stream, found, err)
		}
		folder = found[0]
		copyDir(t, folder, copied)
	})
	place("a", 20)
	place("b", 1)
	// The stream does not cover held.>: such an event is sent again and again, and
	// what is before it in its transaction stays unconfirmed.
	w.Exec(`SELECT e2e.place(gen_random_uuid(), 'a', 'sent', ''), e2e.place(gen_random_uuid(), 'a', 'held', ''), e2e.place(gen_random_uuid(), 'b', 'sent', '')`)
	holds(t, w, stream, 150+210+2)
	err := w.Hands(t.Context(), func() error {
		restart(t, node, func() {
			removeDir(t, folder)
			copyDir(t, copied, folder)
		})
		holds(t, w, stream, 150)
		config.Subjects = append(config.Subjects, "held.>")
		_, err := w.JetStream.UpdateStream(t.Context(), config)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := gap(t, w, "stream", "healed"); n != 210 {
		t.Errorf("the gap tells of %d events, want 210", n)
	}
	relay.Await("relaying", fixture.Patience)
	w.Check()
	truth, err := w.Truth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after := slices.DeleteFunc(truth.Messages, func(m fixture.Message) bool { return m.Seq <= 150 })
	if len(after) == 0 || after[0].Event.EventType != "held" {
		t.Fatal("nothing was stored before the loss was known, so nothing was drilled")
	}
	for _, m := range after[1:] {
		if want := m.Event.AggregateID == "a"; m.Event.Late != want {
			t.Errorf("message %d, an event of aggregate %s, is late: %v, want %v", m.Seq, m.Event.AggregateID, m.Event.Late, want)
		}
	}
}

// placed makes a stream of one replica, and gives the server that has it and one
// that has not.
func placed(t *testing.T, servers []*testenv.NATS, config jetstream.StreamConfig) (with, without *testenv.NATS) {
	t.Helper()
	conn, err := nats.Connect(servers[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	made := envtest.MakeStream(t, js, config)
	leader := made.CachedInfo().Cluster.Leader
	for _, s := range servers {
		if s.Name() == leader {
			with = s
		} else {
			without = s
		}
	}
	if with == nil {
		t.Fatalf("stream %s is on server %q, which is none of the cluster", config.Name, leader)
	}
	return with, without
}
