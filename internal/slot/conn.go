package slot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
)

// Config says how a session reaches the slot.
type Config struct {
	// Postgres is where to connect; RuntimeParams of it are kept.
	Postgres *pgconn.Config
	// Slot and Publication are the names, unquoted.
	Slot, Publication string
	// Settings are pinned on the connection, so that text output does not
	// depend on the server, the database or the role.
	Settings map[string]string
	// Silence is how long the server may send nothing before the connection
	// counts as half-open; from a third of it on the relay asks for a sign of
	// life. Zero means one minute.
	Silence time.Duration
	// Notice receives what the server says beside the data; nil discards it.
	Notice func(*pgconn.PgError)
}

// A Conn is one replication connection. Next belongs to one goroutine; Status
// may be called from another at the same time.
type Conn struct {
	cfg    Config
	pg     *pgconn.PgConn // until Start; nil afterwards
	net    net.Conn
	frames frames
	server ServerInfo

	shutdown shutdownWatch
	stopping atomic.Bool

	mu  sync.Mutex // guards writes
	out [39]byte
}

// ServerInfo is what the server says of itself on a replication connection.
type ServerInfo struct {
	SystemID        string
	Timeline        uint32
	WALEnd          envelope.LSN
	Database        string
	Version         int           // such as 150018
	SenderTimeout   time.Duration // wal_sender_timeout; zero means off
	BackendPID      uint32
	TimelineHistory []byte // contents of the history file; nil on timeline 1
}

// identifyTimeout bounds the questions to a server that has let us in. How long
// each host may take until then is the configuration's to say.
const identifyTimeout = 20 * time.Second

// Connect opens a replication connection and asks the server who it is. It
// does not touch the slot.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.Silence <= 0 {
		cfg.Silence = time.Minute
	}
	pgcfg := cfg.Postgres.Copy()
	if pgcfg.RuntimeParams == nil {
		pgcfg.RuntimeParams = map[string]string{}
	}
	maps.Copy(pgcfg.RuntimeParams, cfg.Settings)
	pgcfg.RuntimeParams["replication"] = "database"
	pg, err := pgconn.ConnectConfig(ctx, pgcfg)
	if err != nil {
		return nil, fmt.Errorf("open a replication connection: %w", err)
	}
	c := &Conn{cfg: cfg, pg: pg}
	if err := c.identify(ctx); err != nil {
		_ = pg.Close(ctx)
		return nil, err
	}
	return c, nil
}

// Server gives what the server said of itself at Connect.
func (c *Conn) Server() ServerInfo { return c.server }

func (c *Conn) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	sys, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	c.server = ServerInfo{
		SystemID:   sys.SystemID,
		Timeline:   uint32(sys.Timeline), //nolint:gosec // a timeline is 32 bits in PostgreSQL
		WALEnd:     envelope.LSN(sys.XLogPos),
		Database:   sys.DBName,
		BackendPID: c.pg.PID(),
	}
	if c.server.Timeline > 1 {
		history, err := pglogrepl.TimelineHistory(ctx, c.pg, sys.Timeline)
		if err != nil {
			return fmt.Errorf("read the history of timeline %d: %w", sys.Timeline, err)
		}
		c.server.TimelineHistory = history.Content
	}
	results, err := c.pg.Exec(ctx,
		`SELECT current_setting('server_version_num'), (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')`).ReadAll()
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return errors.New("read the server's settings: unexpected answer; is a pooler between the relay and PostgreSQL? Replication needs a direct address")
	}
	row := results[0].Rows[0]
	if c.server.Version, err = strconv.Atoi(string(row[0])); err != nil {
		return fmt.Errorf("server_version_num %q: %w", row[0], err)
	}
	ms, err := strconv.Atoi(string(row[1]))
	if err != nil {
		return fmt.Errorf("wal_sender_timeout %q: %w", row[1], err)
	}
	c.server.SenderTimeout = time.Duration(ms) * time.Millisecond
	return nil
}

// Create makes the slot and gives the name of a snapshot that sees exactly what
// the slot will not send. Another connection can take that snapshot over until
// this one is used again. It waits for the transactions that are open now; when
// ctx ends the server is told to give up, so that no half-made slot is left.
func (c *Conn) Create(ctx context.Context) (snapshot string, at envelope.LSN, err error) {
	options := "SNAPSHOT 'export'"
	if c.server.Version >= 170000 {
		options += ", FAILOVER true"
	}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		giveUp, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		_ = c.pg.CancelRequest(giveUp) // the error of the command tells the rest
	})
	result, err := pglogrepl.CreateReplicationSlot(context.WithoutCancel(ctx), c.pg, pgx.Identifier{c.cfg.Slot}.Sanitize(), "pgoutput",
		pglogrepl.CreateReplicationSlotOptions{Mode: pglogrepl.LogicalReplication, SnapshotAction: "(" + options + ")"})
	if !stop() {
		<-cancelled
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "53400" { // configuration_limit_exceeded
		return "", 0, c.noSlotLeft(ctx)
	}
	if err != nil {
		return "", 0, fmt.Errorf("create slot %q: %w", c.cfg.Slot, errors.Join(err, context.Cause(ctx)))
	}
	if at, err = envelope.ParseLSN(result.ConsistentPoint); err != nil {
		return "", 0, fmt.Errorf("create slot %q: consistent point %q: %w", c.cfg.Slot, result.ConsistentPoint, err)
	}
	return result.SnapshotName, at, nil
}

// noSlotLeft says how many there are.
func (c *Conn) noSlotLeft(ctx context.Context) error {
	results, err := c.pg.Exec(ctx, slotsSQL).ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return fmt.Errorf("count the slots: %w", err)
	}
	var full Server
	for i, to := range []*int{&full.Slots, &full.MaxSlots} {
		if *to, err = strconv.Atoi(string(results[0].Rows[0][i])); err != nil {
			return fmt.Errorf("count the slots: %w", err)
		}
	}
	full.Slots = max(full.Slots, full.MaxSlots) // there was none when we asked for one
	return full.CheckSlots()
}

// Drop drops the slot. It is for one that is lost, or that has delivered
// nothing yet and is to be made again.
func (c *Conn) Drop(ctx context.Context) error {
	if _, err := c.pg.Exec(ctx, "DROP_REPLICATION_SLOT "+pgx.Identifier{c.cfg.Slot}.Sanitize()).ReadAll(); err != nil {
		return fmt.Errorf("drop slot %q: %w", c.cfg.Slot, err)
	}
	return nil
}

// Start takes the slot and begins streaming from where the slot stands: 0/0 on
// the wire, since a remembered LSN beyond the slot would skip data. Only where
// an operator has declared what came before to be delivered is that skipped:
// from is where it ends, else 0. It returns once the server has agreed, so the
// slot is held from then on.
func (c *Conn) Start(ctx context.Context, from envelope.LSN) error {
	hijacked, err := c.pg.Hijack()
	if err != nil {
		return fmt.Errorf("take over the replication connection: %w", err)
	}
	c.pg = nil
	c.net = hijacked.Conn
	c.frames = frames{conn: hijacked.Conn}
	if n := hijacked.Frontend.ReadBufferLen(); n > 0 {
		_ = c.net.Close()
		return fmt.Errorf("take over the replication connection: %d bytes were read ahead", n)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = c.start(from)
	if err != nil {
		_ = c.net.Close()
		return fmt.Errorf("start replication on slot %q: %w", c.cfg.Slot, err)
	}
	return nil
}

func (c *Conn) start(from envelope.LSN) error {
	if _, err := c.net.Write(startCommand(c.cfg.Slot, c.cfg.Publication, from)); err != nil {
		return err
	}
	for {
		kind, body, err := c.frames.next()
		if err != nil {
			return err
		}
		switch kind {
		case 'W':
			return nil
		case 'E':
			return serverError(body)
		case 'N':
			c.notice(body)
		case 'S': // a parameter's value: nothing of ours depends on it
		default:
			return fmt.Errorf("unexpected answer %q", kind)
		}
	}
}

func startCommand(slot, publication string, from envelope.LSN) []byte {
	// The publication stands in a string literal and is parsed as a list of
	// identifiers there, so it is quoted twice.
	list := "'" + strings.ReplaceAll(pgx.Identifier{publication}.Sanitize(), "'", "''") + "'"
	query := "START_REPLICATION SLOT " + pgx.Identifier{slot}.Sanitize() +
		" LOGICAL " + from.String() + " (proto_version '1', publication_names " + list + ")"
	b := append([]byte{'Q', 0, 0, 0, 0}, query...)
	b = append(b, 0)
	putLength(b)
	return b
}

func (c *Conn) notice(body []byte) {
	if c.cfg.Notice == nil {
		return
	}
	if e, ok := errors.AsType[*pgconn.PgError](serverError(body)); ok {
		c.cfg.Notice(e)
	}
}

// Interrupt makes a Next that waits return at once; the connection can still
// be written to and ended.
func (c *Conn) Interrupt() {
	c.stopping.Store(true)
	_ = c.net.SetReadDeadline(time.Unix(1, 0))
}

// End leaves the slot in good order: it says that copying is done and reads
// what is still on its way, since closing a socket with unread bytes could
// destroy the last status before the server has read it. It is bounded by ctx;
// nobody may read any more.
func (c *Conn) End(ctx context.Context) error {
	if c.net == nil {
		return c.pg.Close(ctx)
	}
	defer c.net.Close() //nolint:errcheck // nothing can be done about it, and nothing depends on it
	c.frames.beforeRead = nil
	_ = c.net.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.mu.Lock()
	_, err := c.net.Write([]byte{'c', 0, 0, 0, 4})
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("end replication: %w", err)
	}
	for {
		kind, body, err := c.frames.next()
		if err != nil {
			return fmt.Errorf("end replication: %w", err)
		}
		switch kind {
		case 'Z':
			_, err := c.net.Write([]byte{'X', 0, 0, 0, 4})
			return err
		case 'E':
			return fmt.Errorf("end replication: %w", serverError(body))
		}
	}
}

// Close hangs up without a word, as after an error.
func (c *Conn) Close() {
	switch {
	case c.net != nil:
		_ = c.net.Close()
	case c.pg != nil:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.pg.Close(ctx)
	}
}
