package slot_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// a source is a database with a table, a publication and a slot.
type source struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
	slot string
	// passed is the notice that rows pass unseen; it ends the reading.
	passed *pgconn.PgError
}

func newSource(t *testing.T, url string) *source {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	s := &source{t: t, url: url, conn: conn, slot: "s"}
	s.exec(`CREATE TABLE item (id int PRIMARY KEY)`)
	s.exec(`CREATE TABLE other (id int)`)
	s.exec(`CREATE PUBLICATION "My""Pub'1" FOR TABLE item WITH (publish = 'insert')`)
	var name string
	if err := conn.QueryRow(t.Context(), `SELECT 's_' || oid FROM pg_database WHERE datname = current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	s.slot = name
	if _, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, s.slot); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for range 100 { // the walsender of a connection that was cut may still be there
			if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, s.slot); err != nil {
				return
			}
			if info, err := slot.Inspect(ctx, conn, s.slot); err != nil || !info.Exists {
				return
			}
		}
	})
	return s
}

func (s *source) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// version is the server's major version.
func (s *source) version() (major int) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		s.t.Fatal(err)
	}
	return major
}

func (s *source) info() slot.Info {
	s.t.Helper()
	i, err := slot.Inspect(s.t.Context(), s.conn, s.slot)
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func (s *source) connect(silence time.Duration, url string) *slot.Conn {
	s.t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		s.t.Fatal(err)
	}
	var c *slot.Conn
	notice := func(n *pgconn.PgError) {
		if slot.IsLostWAL(n) {
			s.passed = n
			c.Interrupt()
		}
	}
	c, err = slot.Connect(s.t.Context(), slot.Config{Postgres: cfg, Slot: s.slot, Publication: `My"Pub'1`, Silence: silence, Notice: notice})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *source) start() *slot.Conn {
	s.t.Helper()
	c := s.connect(10*time.Second, s.url)
	if err := c.Start(s.t.Context(), 0); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// commits reads until n transactions have ended and gives their end LSNs.
func commits(t *testing.T, c *slot.Conn, n int) []envelope.LSN {
	t.Helper()
	var ends []envelope.LSN
	var d decode.Decoder
	var m decode.Message
	var f slot.Frame
	for len(ends) < n {
		if err := c.Next(&f); err != nil {
			t.Fatalf("Next = %v after %d of %d transactions", err, len(ends), n)
		}
		if f.Data == nil {
			continue
		}
		if err := d.Decode(f.Data, &m); err != nil {
			t.Fatal(err)
		}
		if m.Kind == decode.KindCommit {
			ends = append(ends, m.EndLSN)
		}
	}
	return ends
}

func TestA04ConfirmingTheEndLSNIsTheLastOfATransaction(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	for i := range 3 {
		s.exec(`INSERT INTO item VALUES ($1)`, i)
	}
	c := s.start()
	ends := commits(t, c, 3)
	if err := c.Status(ends[1], false); err != nil {
		t.Fatal(err)
	}
	c.Interrupt()
	if err := c.Next(new(slot.Frame)); !errors.Is(err, slot.ErrStopped) {
		t.Fatalf("Next after Interrupt = %v, want ErrStopped", err)
	}
	if err := c.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.info().Confirmed; got != ends[1] {
		t.Errorf("confirmed LSN = %v, want %v", got, ends[1])
	}
	if got := commits(t, s.start(), 1); got[0] != ends[2] {
		t.Errorf("the next session begins with the transaction that ends at %v, want %v", got[0], ends[2])
	}
}

func TestA02NothingToConfirmMovesNothing(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	before := s.info().Confirmed
	s.exec(`INSERT INTO item VALUES (1)`)
	c := s.start()
	commits(t, c, 1)
	if err := c.Status(0, true); err != nil {
		t.Fatal(err)
	}
	var f slot.Frame
	for f.Data != nil || f.WALEnd == 0 { // the answer to our question: the status was read
		if err := c.Next(&f); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.info().Confirmed; got != before {
		t.Errorf("confirmed LSN = %v after a status of nothing, want %v as before", got, before)
	}
}

func TestASecondConnectionLearnsWhoHoldsTheSlot(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	first := s.start()
	err := s.connect(time.Second, s.url).Start(t.Context(), 0)
	if got := slot.Classify(err); got != slot.SlotInUse {
		t.Errorf("Classify(%v) = %v, want slot_in_use", err, got)
	}
	if got, want := s.info().HolderPID, int(first.Server().BackendPID); got != want {
		t.Errorf("HolderPID = %d, want %d", got, want)
	}
}

func TestA11TheServersErrorEndsTheStreamWithItsClass(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do   func(*source, *slot.Conn)
		want slot.Class
	}{
		"terminated": {
			do:   func(s *source, c *slot.Conn) { s.exec(`SELECT pg_terminate_backend($1)`, int(c.Server().BackendPID)) },
			want: slot.Shutdown,
		},
		"the publication is gone": {
			do: func(s *source, _ *slot.Conn) {
				s.exec(`DROP PUBLICATION "My""Pub'1"`)
				s.exec(`INSERT INTO item VALUES (7)`)
			},
			want: slot.PublicationMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, envtest.SharedPostgres(t))
			c := s.start()
			tt.do(s, c)
			var f slot.Frame
			var err error
			for err == nil {
				err = c.Next(&f)
			}
			// From 18 on the server lets the rows pass and only says so.
			if says := tt.want == slot.PublicationMissing && s.version() >= 18; says != (s.passed != nil) {
				t.Errorf("notice %v from version %d (%v)", s.passed, s.version(), err)
			} else if got := slot.Classify(err); !says && got != tt.want {
				t.Errorf("Classify(%v) = %v, want %v", err, got, tt.want)
			}
		})
	}
	t.Run("no slot of that name", func(t *testing.T) {
		t.Parallel()
		s := newSource(t, envtest.SharedPostgres(t))
		s.exec(`SELECT pg_drop_replication_slot($1)`, s.slot)
		err := s.connect(time.Second, s.url).Start(t.Context(), 0)
		if got := slot.Classify(err); got != slot.SlotMissing {
			t.Errorf("Classify(%v) = %v, want slot_missing", err, got)
		}
	})
}

func TestA06AServerThatShutsDownIsRecognised(t *testing.T) {
	t.Parallel()
	for _, version := range []int{15, 18} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			pg := envtest.Postgres(t, testenv.PGConfig{Version: version})
			s := newSource(t, pg.URL("postgres"))
			s.exec(`INSERT INTO item VALUES (1)`)
			c := s.start()
			commits(t, c, 1) // received, and never confirmed: the server waits for it
			stopped := make(chan error, 1)
			go func() { stopped <- pg.Stop(context.WithoutCancel(t.Context()), testenv.Fast) }()
			var f slot.Frame
			var err error
			for err == nil {
				if err = c.Next(&f); err == nil && f.ReplyRequested {
					err = c.Status(0, false)
				}
			}
			if !errors.Is(err, slot.ErrShutdown) {
				t.Errorf("Next = %v, want ErrShutdown", err)
			}
			c.Close()
			if err := <-stopped; err != nil {
				t.Errorf("the server did not stop after the relay had left: %v", err)
			}
		})
	}
}

func TestA10AHalfOpenConnectionIsFoundBySilence(t *testing.T) {
	t.Parallel()
	pg := envtest.Postgres(t, testenv.PGConfig{})
	proxy := envtest.Proxy(t, pg.Addr())
	s := newSource(t, pg.URL("postgres"))
	c := s.connect(300*time.Millisecond, "postgres://postgres@"+proxy.Addr()+"/postgres?sslmode=disable")
	if err := c.Start(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	var f slot.Frame
	var err error
	for err == nil {
		err = c.Next(&f)
	}
	if !errors.Is(err, slot.ErrSilent) {
		t.Errorf("Next = %v, want ErrSilent", err)
	}
}

func TestARowLargerThanTheBufferComesWholeAndTheBufferShrinksAgain(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	s.exec(`CREATE TABLE big (id int PRIMARY KEY, body text)`)
	s.exec(`ALTER PUBLICATION "My""Pub'1" ADD TABLE big`)
	s.exec(`INSERT INTO big SELECT i, repeat('x', 3000000) FROM generate_series(1, 3) i`)
	s.exec(`INSERT INTO item VALUES (1)`)
	c := s.start()
	commits(t, c, 2)
}

func TestA31ASlotOfAnotherKindIsNamedAndLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	for problem, info := range map[string]slot.Info{
		"has the plugin test_decoding":            {Exists: true, Type: "logical", Plugin: "test_decoding", Database: "shop"},
		"is a physical slot":                      {Exists: true, Type: "physical"},
		`belongs to database "x", not "shop"`:     {Exists: true, Type: "logical", Plugin: "pgoutput", Database: "x"},
		"was made with two-phase decoding":        {Exists: true, Type: "logical", Plugin: "pgoutput", Database: "shop", TwoPhase: true},
		"is temporary and goes with the connecti": {Exists: true, Type: "logical", Plugin: "pgoutput", Database: "shop", Temporary: true},
	} {
		err := info.Check("s", "shop")
		misfit, ok := errors.AsType[*slot.MisfitError](err)
		if !ok || len(misfit.Problem) < len(problem) || misfit.Problem[:len(problem)] != problem {
			t.Errorf("Check = %v, want %q", err, problem)
		}
	}
	var database string
	if err := s.conn.QueryRow(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	if err := s.info().Check(s.slot, database); err != nil {
		t.Errorf("Check of a good slot = %v, want nil", err)
	}
}

func TestThePublicationIsCheckedByWhatItCovers(t *testing.T) {
	t.Parallel()
	s := newSource(t, envtest.SharedPostgres(t))
	look := func(publication, table string) error {
		t.Helper()
		p, err := slot.InspectPublication(t.Context(), s.conn, publication, "public", table)
		if err != nil {
			t.Fatal(err)
		}
		return p.Check(publication, "public", table)
	}
	if err := look(`My"Pub'1`, "item"); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	for _, tt := range [][2]string{{"none", "item"}, {`My"Pub'1`, "other"}, {`My"Pub'1`, "absent"}} {
		if _, ok := errors.AsType[*slot.MisfitError](look(tt[0], tt[1])); !ok {
			t.Errorf("publication %s, table %s: want a *MisfitError", tt[0], tt[1])
		}
	}
	s.exec(`CREATE TABLE parted (id int) PARTITION BY RANGE (id)`)
	s.exec(`CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (10)`)
	s.exec(`CREATE PUBLICATION off FOR TABLE parted`)
	s.exec(`CREATE PUBLICATION viaroot FOR TABLE parted WITH (publish_via_partition_root = true)`)
	for _, name := range []string{"off", "viaroot"} {
		if err := look(name, "parted"); err != nil {
			t.Errorf("A23: publication %s of a partitioned table: %v, want nil", name, err)
		}
	}
}
