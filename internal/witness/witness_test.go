package witness_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
)

func taking(session uuid.UUID) witness.Taking {
	return witness.Taking{
		Schema: "walrelay", Source: "shop", Slot: "shop", Session: session, Epoch: 1, Host: "host", PID: 7,
		Identity: witness.Identity{SystemID: "18446744073709551615", Timeline: 1},
	}
}

func take(t *testing.T, conn *pgx.Conn, session uuid.UUID) witness.Witness {
	t.Helper()
	before, err := witness.Take(t.Context(), conn, taking(session))
	if err != nil {
		t.Fatalf("Take() = %v, want nil", err)
	}
	return before
}

func TestAWitnessReadsBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	if w, err := witness.Read(t.Context(), conn, "walrelay", "shop"); err != nil || w.Exists {
		t.Fatalf("Read() before the first start = %v, %v, want none", w, err)
	}
	session := uuid.New()
	if before := take(t, conn, session); before.Exists {
		t.Errorf("first Take() found %+v, want none", before)
	}
	at := time.Date(2026, 11, 29, 1, 2, 3, 4000, time.UTC)
	streams := map[string]witness.StreamState{
		"SHOP": {Created: at, LastSeq: 1 << 63, Position: envelope.Position{Epoch: 1, Commit: 0x1_0000_00AB, Index: 3}, MsgID: "m", At: at},
		"NEW":  {Created: at, At: at},
	}
	writing := witness.Writing{Schema: "walrelay", Source: "shop", Session: session, ConfirmedLSN: 0x2_0000_0001, RoutesHash: "h", Routes: []string{"route 1"}, Streams: streams}
	if err := witness.Write(t.Context(), conn, writing); err != nil {
		t.Fatalf("Write() = %v, want nil", err)
	}
	writing.ConfirmedLSN = 5 // of a session that has confirmed little as yet
	if err := witness.Write(t.Context(), conn, writing); err != nil {
		t.Fatalf("Write() = %v, want nil", err)
	}
	next := uuid.New()
	got := take(t, conn, next)
	want := witness.Witness{
		Exists: true, Slot: "shop", Session: session, Epoch: 1, ConfirmedLSN: 0x2_0000_0001, RoutesHash: "h", Routes: []string{"route 1"}, Streams: streams,
		Host: "host", PID: 7, UpdatedAt: got.UpdatedAt,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Take() gave another witness than was there (-want +got):\n%s", diff)
	}
	if got, err := witness.Read(t.Context(), conn, "walrelay", "shop"); err != nil || got.Session != next || got.ConfirmedLSN != 0x2_0000_0001 {
		t.Errorf("Read() = %+v, %v, want the new session and all else as it was", got, err)
	}
}

func TestARelayThatWakesAfterATakeoverCanWriteNothing(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	old, young := connect(t, url), connect(t, url)
	sleeping, taker := uuid.New(), uuid.New()
	take(t, old, sleeping)
	take(t, young, taker)

	err := witness.Write(t.Context(), old, witness.Writing{Schema: "walrelay", Source: "shop", Session: sleeping, ConfirmedLSN: 9})
	if !errors.Is(err, witness.ErrSessionLost) {
		t.Errorf("Write() of the old session = %v, want ErrSessionLost", err)
	}
	err = pgx.BeginFunc(t.Context(), old, func(tx pgx.Tx) error {
		return witness.Lock(t.Context(), tx, "walrelay", "shop", sleeping)
	})
	if !errors.Is(err, witness.ErrSessionLost) {
		t.Errorf("Lock() of the old session = %v, want ErrSessionLost", err)
	}
	err = pgx.BeginFunc(t.Context(), young, func(tx pgx.Tx) error {
		return witness.Lock(t.Context(), tx, "walrelay", "shop", taker)
	})
	if err != nil {
		t.Errorf("Lock() of the new session = %v, want nil", err)
	}
}

func TestATakeoverWaitsForAWriteThatIsUnderWay(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	old, young, watcher := connect(t, url), connect(t, url), connect(t, url)
	sleeping, taker := uuid.New(), uuid.New()
	take(t, old, sleeping)
	tx, err := old.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := witness.Lock(t.Context(), tx, "walrelay", "shop", sleeping); err != nil {
		t.Fatal(err)
	}
	pid := young.PgConn().PID()
	taken := make(chan error, 1)
	go func() {
		_, err := witness.Take(context.WithoutCancel(t.Context()), young, taking(taker))
		taken <- err
	}()
	waitsForLock(t, watcher, pid)
	if _, err := tx.Exec(t.Context(), `INSERT INTO walrelay.job (source, kind) VALUES ('shop', 'heal')`); err != nil {
		t.Errorf("write under the lock = %v, want nil", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("commit under the lock = %v, want nil", err)
	}
	if err := <-taken; err != nil {
		t.Errorf("Take() = %v, want nil after the write", err)
	}
}

// The old session asks for the lock while the takeover is under way: it must
// see the new session, not the row as it was.
func TestALockThatMeetsATakeoverIsLost(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	// Roles with another isolation level must not weaken the fence.
	admin := connect(t, url)
	exec(t, admin, `ALTER DATABASE "`+admin.Config().Database+`" SET default_transaction_isolation = 'serializable'`)
	old, young, watcher := connect(t, url), connect(t, url), connect(t, url)
	sleeping := uuid.New()
	take(t, old, sleeping)
	takeover, err := young.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeover.Exec(t.Context(), `UPDATE walrelay.witness SET session = gen_random_uuid()`); err != nil {
		t.Fatal(err)
	}
	pid := old.PgConn().PID()
	locked := make(chan error, 1)
	go func() {
		ctx := context.WithoutCancel(t.Context())
		locked <- pgx.BeginFunc(ctx, old, func(tx pgx.Tx) error { return witness.Lock(ctx, tx, "walrelay", "shop", sleeping) })
	}()
	waitsForLock(t, watcher, pid)
	if err := takeover.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; !errors.Is(err, witness.ErrSessionLost) {
		t.Errorf("Lock() = %v, want ErrSessionLost", err)
	}
}

func waitsForLock(t *testing.T, watcher *pgx.Conn, pid uint32) {
	t.Helper()
	envtest.Eventually(t, 20*time.Second, func() error {
		var waits bool
		err := watcher.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')`, int32(pid)).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the other session does not wait for the lock")
		}
		return err
	})
}

func TestMissingTablesAreNamedWithTheCommand(t *testing.T) {
	t.Parallel()
	conn := connect(t, envtest.SharedPostgres(t))
	_, err := witness.Epochs(t.Context(), conn, "walrelay", "shop")
	if _, ok := errors.AsType[*witness.MissingError](err); !ok {
		t.Errorf("Epochs() = %v, want a MissingError", err)
	}
}
