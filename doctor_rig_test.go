package walrelay_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// A patient is what Doctor looks at: a database of its own, a server of NATS
// with one stream.
type patient struct {
	t      *testing.T
	name   string // of the database, source, slot and publication
	conn   *pgx.Conn
	cfg    walrelay.Config
	stream string
	js     jetstream.JetStream
}

// newPatient is all that it must be, apart from the slot, which is there only
// if it is asked for.
func newPatient(t *testing.T, address string, withSlot bool) *patient {
	t.Helper()
	p := strangerTo(t, address)
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	m := migrations.Config{Slot: p.name, Publication: p.name}
	if !withSlot {
		m.SchemaOnly = true
	}
	if err := migrations.Apply(t.Context(), cfg, m, nil); err != nil {
		t.Fatal(err)
	}
	if !withSlot {
		p.exec("CREATE PUBLICATION " + p.name + " FOR TABLE walrelay.outbox WITH (publish = 'insert', publish_via_partition_root = true)")
	}
	return p
}

// strangerTo has a stream, and nothing in its database.
func strangerTo(t *testing.T, address string) *patient {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	p := &patient{t: t, name: conn.Config().Database, conn: conn}
	p.stream = strings.ToUpper(p.name)
	server := envtest.EmbeddedNATS(t)
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if p.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	p.cfg = walrelay.Config{DatabaseURL: address, NATS: server.URL(), Source: p.name}
	p.makeStream(nil)
	return p
}

func (p *patient) makeStream(change func(*jetstream.StreamConfig)) {
	p.t.Helper()
	cfg := jetstream.StreamConfig{Name: p.stream, Subjects: []string{"outbox." + p.name + ".>"}}
	if change != nil {
		change(&cfg)
	}
	_ = p.js.DeleteStream(p.t.Context(), p.stream)
	envtest.MakeStream(p.t, p.js, cfg)
}

func (p *patient) exec(statements ...string) {
	p.t.Helper()
	for _, s := range statements {
		if _, err := p.conn.PgConn().Exec(p.t.Context(), s).ReadAll(); err != nil {
			p.t.Fatalf("%.100s: %v", s, err)
		}
	}
}

// as is the patient's database for another role.
func (p *patient) as(role string) string {
	p.t.Helper()
	u, err := url.Parse(p.cfg.DatabaseURL)
	if err != nil {
		p.t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// A diagnosis is what Doctor said.
type diagnosis struct {
	t *testing.T
	walrelay.Report
}

func (p *patient) examine() diagnosis {
	p.t.Helper()
	report, err := walrelay.Doctor(p.t.Context(), p.cfg)
	if err != nil {
		p.t.Fatalf("Doctor() = %v, want a report", err)
	}
	return diagnosis{t: p.t, Report: report}
}

// find gives the check of that name.
func (d diagnosis) find(name string) walrelay.Check {
	d.t.Helper()
	for _, c := range d.Checks {
		if c.Name == name {
			return c
		}
	}
	d.t.Fatalf("no check %q in:\n%s", name, d)
	return walrelay.Check{}
}

// want demands a verdict, and that why and fix together hold all words.
func (d diagnosis) want(name string, v walrelay.Verdict, words ...string) walrelay.Check {
	d.t.Helper()
	c := d.find(name)
	if c.Verdict != v {
		d.t.Errorf("check %q = %+v, want verdict %s", name, c, v)
	}
	for _, w := range words {
		if !strings.Contains(c.Value+"\n"+c.Why+"\n"+c.Fix, w) {
			d.t.Errorf("check %q = %+v, want it to hold %q", name, c, w)
		}
	}
	return c
}

// only demands that nothing but these checks fails.
func (d diagnosis) only(failed ...string) {
	d.t.Helper()
	var got []string
	for _, c := range d.Checks {
		if c.Verdict == walrelay.VerdictFail {
			got = append(got, c.Name)
		}
	}
	if strings.Join(got, "|") != strings.Join(failed, "|") {
		d.t.Errorf("failed checks = %q, want %q; all:\n%s", got, failed, d)
	}
}

func (d diagnosis) String() string {
	var b strings.Builder
	for _, c := range d.Checks {
		b.WriteString(string(c.Verdict) + " " + c.Area + ": " + c.Name + ": " + c.Value)
		if c.Verdict != walrelay.VerdictOK {
			b.WriteString("\n\twhy: " + c.Why + "\n\tfix: " + c.Fix)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// sameWords demands that a relay waits or halts for what the check says.
func (p *patient) sameWords(c walrelay.Check) {
	p.t.Helper()
	relay, err := walrelay.New(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("Run() = %v, want nil", err)
		}
	}()
	envtest.Eventually(p.t, patience, func() error {
		status := relay.Status()
		reason := status.Reason
		for _, s := range status.Streams {
			reason += "\n" + s.Reason
		}
		if !strings.Contains(reason, c.Why) || !strings.Contains(reason, c.Fix) {
			return fmt.Errorf("a relay is %s because %q, want it to hold %q and %q", status.State, reason, c.Why, c.Fix)
		}
		return nil
	})
}

// role makes a role that may log in and goes with the test.
func (p *patient) role(suffix, attributes string) string {
	p.t.Helper()
	role := p.name + suffix
	p.exec("CREATE ROLE " + role + " LOGIN " + attributes)
	p.t.Cleanup(func() { _, _ = p.conn.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role) })
	return role
}

// grant gives a role all but REPLICATION.
func (p *patient) grant(role string) {
	p.t.Helper()
	p.exec("GRANT USAGE ON SCHEMA walrelay TO "+role, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walrelay TO "+role)
}

// replication makes a replication connection to a database.
func replication(t *testing.T, address string) *pgconn.PgConn {
	t.Helper()
	cfg, err := pgconn.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// patience is how long a server may take for what it does at once.
const patience = 20 * time.Second

func query(sql string) *pgproto3.Query { return &pgproto3.Query{String: sql} }
