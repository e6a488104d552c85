package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I5: after a crash the slot's position falls back and PostgreSQL sends
// again what was confirmed.
func TestAPostgreSQLThatRestartsAndCrashesUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Stream: shortDuplicates})
	rnd := w.Random("instants")
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 3})
	for _, down := range []func(context.Context) error{
		func(ctx context.Context) error { return cluster.Stop(ctx, testenv.Fast) },
		cluster.Kill,
		func(ctx context.Context) error { return cluster.Stop(ctx, testenv.Immediate) },
		func(ctx context.Context) error { return cluster.Stop(ctx, testenv.Fast) },
		cluster.Kill,
	} {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(before + 1 + uint64(rnd.IntN(300)))
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		err = down(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

// A clean restart of PostgreSQL while the relay is down: up to version 16 the
// slot's position falls back even then.
func TestAPostgreSQLThatRestartsWithoutARelayDoublesNothing(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Stream: shortDuplicates})
	for _, down := range []func(context.Context) error{
		func(ctx context.Context) error { return cluster.Stop(ctx, testenv.Fast) },
		cluster.Kill,
	} {
		relay := w.Start()
		w.Load(fixture.LoadConfig{Writers: 2, Transactions: 60}).Wait()
		w.Check()
		relay.Stop(fixture.Patience)
		if err := down(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := cluster.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	relay := w.Start()
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20}).Wait()
	w.Check()
	relay.Stop(fixture.Patience)
}
