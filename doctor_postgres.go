package walrelay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// A databaseDoctor looks at PostgreSQL.
type databaseDoctor struct {
	area
	cfg    *Config
	router *router.Router
	conn   *pgx.Conn

	server  slot.Server
	slot    slot.Info
	looked  bool // slot and witness are known
	witness witness.Witness
	epoch   uint32
	repl    replicationTry
}

// A replicationTry is what came of a replication connection.
type replicationTry struct {
	server slot.ServerInfo
	err    error
}

// look asks over both connections. What is wrong with the server comes before
// what follows from it.
func (d *databaseDoctor) look(ctx context.Context) {
	tried := make(chan replicationTry, 1)
	go func() { tried <- d.tryReplication(ctx) }()
	sqlCtx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	connected := d.connect(sqlCtx)
	d.repl = <-tried
	if connected {
		defer d.conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
		d.lookAtServer(sqlCtx)
	}
	d.judgeReplication()
	if !connected {
		return
	}
	there := d.lookAtSchema(sqlCtx)
	for _, t := range d.cfg.Tables {
		there = d.lookAtTable(sqlCtx, t) && there
	}
	d.lookAtParts(sqlCtx)
	if there {
		d.lookAtDeletion(sqlCtx)
	}
	d.lookAtSlot(sqlCtx)
	d.lookAtOthers(sqlCtx)
	d.lookAtStandbys(sqlCtx)
	d.lookAtSettings()
	d.lookAtHistory(sqlCtx)
}

func (d *databaseDoctor) application() string { return "walrelay " + d.cfg.Source + " doctor" }

// open gives a session that can change nothing.
func (d *databaseDoctor) open(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := d.cfg.postgres(d.cfg.DatabaseURL, "doctor")
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	if cfg.ValidateConnect != nil {
		// read-write asks for the session's own setting, which the relay
		// has off: a server that is no standby will do for both.
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return openSQL(ctx, cfg)
}

// connect sees that there is a session, and with whom.
func (d *databaseDoctor) connect(ctx context.Context) bool {
	const name = "SQL connection"
	var err error
	if d.conn, err = d.open(ctx); err != nil {
		d.unreachable(name, err)
		return false
	}
	if d.server, err = slot.InspectServer(ctx, d.conn, d.application()); err != nil {
		d.unreachable(name, err)
		_ = d.conn.Close(ctx)
		return false
	}
	value := fmt.Sprintf("role %s, database %s, at %s", d.server.User, d.server.Database, whereTo(d.conn))
	if d.server.Pooled {
		d.warn(name, value, "it leads through what looks like a pooler: the relay waits in LISTEN and needs the settings that it makes for its session, which a pooler in transaction mode keeps for no one",
			"give the server's own address with --database-url, or a pooler in session mode")
		return true
	}
	d.ok(name, value, "the relay keeps its witness, dead letters and gaps there")
	return true
}

// whereTo names the server of a connection: as the URL does where that names one,
// and else by the address at which one was found.
func whereTo(conn *pgx.Conn) string {
	cfg := conn.Config()
	if _, hosts := ways(cfg); len(hosts) > 1 {
		return conn.PgConn().Conn().RemoteAddr().String()
	}
	return fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
}

// unreachable adds a connection that failed. The fix is known only where the
// server has said what it misses.
func (d *databaseDoctor) unreachable(name string, err error) {
	why, fix := words(err)
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("no answer within %v (%s)", doctorPatience, why)
	}
	if fix == "" {
		fix = "correct the address, the role or its password (--database-url, --replication-url), or start the server"
	}
	d.add(VerdictFail, name, "none", why, fix)
}

// tryReplication makes a replication connection and hangs up: what pg_hba.conf,
// the role and a pooler let through, only an attempt tells. It touches no slot.
func (d *databaseDoctor) tryReplication(ctx context.Context) (t replicationTry) {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	cfg, err := d.cfg.postgres(d.cfg.ReplicationURL, "doctor")
	if err != nil {
		return replicationTry{err: err}
	}
	conn, err := slot.Connect(ctx, slot.Config{Postgres: replicationConfig(cfg), Slot: d.cfg.Slot, Publication: d.cfg.Publication})
	if err != nil {
		return replicationTry{err: err}
	}
	t.server = conn.Server()
	conn.Close()
	return t
}

func (d *databaseDoctor) judgeReplication() {
	const name = "replication connection"
	if d.repl.err != nil {
		d.unreachable(name, slot.Refusal(d.repl.err, slot.ForReplication, d.server))
		return
	}
	value := "made"
	switch {
	case d.server.Superuser:
		value += ", as superuser"
	case d.server.Replication:
		value += ", role with REPLICATION"
	case d.server.ReplicationGrant != "":
		value += ", member of " + d.server.ReplicationGrant
	}
	d.ok(name, value, "pg_hba.conf and the role's rights let the relay read the slot")
}

func (d *databaseDoctor) lookAtServer(_ context.Context) {
	s := d.server
	d.judge("version", s.VersionText, s.CheckVersion(), "publications have row filters, column lists and schemas since PostgreSQL 15")
	if err := s.CheckPrimary(); err != nil {
		d.refuse(VerdictFail, "primary", "standby", err)
	}
	d.judge("wal_level", s.WALLevel, s.CheckWALLevel(), "a logical slot decodes what only wal_level=logical writes")
	senders := fmt.Sprintf("%d of %d in use", s.Senders, s.MaxSenders)
	if err := s.CheckSenders(); err != nil {
		// The relay may hold one of them; whether another can be made, the
		// attempt tells.
		d.refuse(VerdictWarn, "max_wal_senders", senders, err)
	} else {
		d.ok("max_wal_senders", senders, "the relay holds one replication connection")
	}
}

// lookAtSettings looks at what the server does to a relay that is slow, stopped
// or cut off.
func (d *databaseDoctor) lookAtSettings() {
	s := d.server
	if s.SenderTimeout == "0" {
		d.warn("wal_sender_timeout", "off", "the server never finds out that a relay's connection is dead, so the slot stays held and no other relay takes over",
			"ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf(); -- as a superuser")
	} else {
		d.ok("wal_sender_timeout", s.SenderTimeout, "after it the server lets go of a relay that says nothing; the relay speaks at least three times as often")
	}
	switch {
	case s.KeepBytes < 0:
		d.ok("max_slot_wal_keep_size", "no limit", "a relay that is stopped loses nothing, and the server keeps WAL until its disk is full: watch what the slot retains")
	case s.KeepBytes < 1<<30:
		d.warn("max_slot_wal_keep_size", s.KeepSize, "a relay that is behind by more loses its slot, and with it the events",
			"ALTER SYSTEM SET max_slot_wal_keep_size = '64GB'; SELECT pg_reload_conf(); -- as a superuser; as much as the disk bears and the longest outage writes")
	default:
		d.ok("max_slot_wal_keep_size", s.KeepSize, "a relay that is behind by more loses its slot, and with it the events")
	}
	if s.IdleSlotSeconds > 0 {
		d.warn("idle_replication_slot_timeout", s.IdleSlotTimeout, "a relay that is stopped for longer loses its slot, and with it the events",
			"ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf(); -- as a superuser")
	} else if s.IdleSlotTimeout != "" {
		d.ok("idle_replication_slot_timeout", "off", "a relay that is stopped for long keeps its slot")
	}
	switch {
	case s.SynchronousNames != "" && d.cfg.WaitVisible:
		d.ok("synchronous_standby_names", s.SynchronousNames, "wait_visible is on: an event is published when its transaction is visible, which is after the standby has answered")
	case s.SynchronousNames != "":
		d.warn("synchronous_standby_names", s.SynchronousNames,
			"an event can reach a consumer before its transaction is visible in the database: it is decoded as soon as it is written, and visible when the standby has answered",
			"walrelay run --wait-visible; or consumers take what they need from the event, or look again when they do not find the row")
	default:
		d.ok("synchronous_standby_names", "none", "with a synchronous standby an event can reach a consumer before its transaction is visible")
	}
	d.ok("timeouts of statements and sessions", "set by the relay for its own sessions", "those of the role or database do not end a relay's session")
}

// lookAtHistory compares the server with the history that was delivered so far.
func (d *databaseDoctor) lookAtHistory(ctx context.Context) {
	const name = "history"
	if !d.witness.Exists || d.repl.err != nil {
		return
	}
	epochs, err := witness.Epochs(ctx, d.conn, d.cfg.Schema, d.cfg.Source)
	if err != nil {
		d.unknown(name, plain(err))
		return
	}
	server := d.repl.server
	judgement, at, err := witness.Judge(epochs, witness.Identity{
		SystemID: server.SystemID, Timeline: server.Timeline, WALEnd: server.WALEnd, History: server.TimelineHistory,
	})
	value := fmt.Sprintf("system %s, timeline %d", server.SystemID, server.Timeline)
	if err == nil && judgement == witness.Promoted {
		d.warn(name, value, fmt.Sprintf("the database was promoted since the relay's last run: timeline %d began at LSN %v", server.Timeline, at), "")
		return
	}
	if d.judge(name, value, err, "LSNs of two histories cannot be compared") && len(epochs) > 0 {
		d.epoch = epochs[len(epochs)-1].Number
	}
}

// ago writes a duration as people read it.
func ago(d time.Duration) string { return d.Round(time.Second).String() }

// bytesOf writes a number of bytes as people read it.
func bytesOf(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}
