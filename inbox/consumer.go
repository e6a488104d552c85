package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/quiet"
)

// newTimeout bounds the look at the database in New.
const newTimeout = 15 * time.Second

// A Consumer applies the events of a stream to one database, each once. Make
// one with [New], give it handlers with [On], and call [Consumer.Run].
type Consumer struct {
	cfg        Config
	db         database
	sql        statements
	log        *slog.Logger
	often      *quiet.Handler // behind log
	tele       *telemetry
	count      counts
	trouble    *trouble
	fetches    *trouble
	checks     *trouble
	signatures *signatures
	// alone is held for reading by what runs, and for writing by an event
	// that may kill its process.
	alone sync.RWMutex
	// server is when the database server started that this process last
	// spoke to.
	server   atomic.Pointer[string]
	compared atomic.Bool // whether the receipts' retention was looked at
	// recheck asks for a look for what the database has forgotten.
	recheck chan struct{}

	mu         sync.Mutex
	frozen     bool
	handlers   map[string]Handler
	middleware []Middleware
	mistakes   []error
	unknown    map[string]bool // types that were logged as without a handler
}

// New makes a consumer for a database that is reached by pgx. It looks
// whether walrelay's tables are there, and returns [ErrNoReceipts] if not. A
// database that is away is an error here; [Consumer.Run] waits for it.
func New(cfg Config) (*Consumer, error) {
	if cfg.DB == nil {
		return nil, errors.New("inbox.Config: DB: want a pool; for a *sql.DB use inbox.NewSQL")
	}
	most := int(cfg.DB.Config().MaxConns) - spareConns
	switch {
	case cfg.Concurrency == 0:
		cfg.Concurrency = min(defaultConcurrency, max(1, most))
	case cfg.Concurrency > most:
		return nil, fmt.Errorf("inbox.Config: Concurrency %d: the pool has %d connections, and %d more are needed than handlers; raise pool_max_conns or lower Concurrency",
			cfg.Concurrency, cfg.DB.Config().MaxConns, spareConns)
	}
	db, err := newPgxDatabase(cfg.DB, cfg.Isolation)
	if err != nil {
		return nil, fmt.Errorf("inbox.Config: Isolation: %w", err)
	}
	return newConsumer(cfg, db)
}

// A SQLConsumer is a [Consumer] whose handlers are given a *sql.Tx. [OnSQL]
// registers them.
type SQLConsumer struct{ *Consumer }

// NewSQL makes a consumer for a database that is reached by database/sql, with
// a driver for PostgreSQL. cfg.DB must be nil. It looks for the tables as [New]
// does.
func NewSQL(db *sql.DB, cfg Config) (*SQLConsumer, error) {
	if db == nil || cfg.DB != nil {
		return nil, errors.New("inbox.NewSQL: want a *sql.DB, and a Config without DB")
	}
	if _, err := newPgxDatabase(nil, cfg.Isolation); err != nil {
		return nil, fmt.Errorf("inbox.Config: Isolation: %w", err)
	}
	c, err := newConsumer(cfg, &sqlDatabase{db: db, options: &sql.TxOptions{Isolation: cfg.Isolation}})
	if err != nil {
		return nil, err
	}
	return &SQLConsumer{c}, nil
}

func newConsumer(cfg Config, db database) (*Consumer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	tele, err := newTelemetry(cfg)
	if err != nil {
		return nil, err
	}
	often := quiet.New(cfg.Logger.Handler())
	c := &Consumer{
		cfg: cfg, often: often, db: db, sql: newStatements(cfg.Schema, cfg.AsyncCommit), tele: tele,
		log:      slog.New(often).With(slog.String("consumer", cfg.durable())),
		recheck:  make(chan struct{}, 1),
		handlers: map[string]Handler{}, unknown: map[string]bool{},
	}
	c.signatures = &signatures{read: cfg.SignatureKeys, log: c.log}
	if err := c.signatures.load(); err != nil {
		return nil, fmt.Errorf("inbox.Config: SignatureKeys: %w", err)
	}
	c.trouble = &trouble{log: c.log, what: slog.String("what", "apply events")}
	c.fetches = &trouble{log: c.log, what: slog.String("what", "fetch messages")}
	c.checks = &trouble{log: c.log, what: slog.String("what", "compare messages with receipts")}
	ctx, cancel := context.WithTimeout(context.Background(), newTimeout)
	defer cancel()
	if err := c.checkTables(ctx); err != nil {
		return nil, fmt.Errorf("consumer %q: %w", cfg.Name, err)
	}
	if d, ok := db.(*pgxDatabase); ok && !cfg.AsyncCommit {
		if err := d.durable(ctx); err != nil {
			return nil, fmt.Errorf("consumer %q: %w", cfg.Name, err)
		}
	}
	return c, nil
}

func (c *Consumer) checkTables(ctx context.Context) error {
	var missing []string
	schema := pgx.Identifier{c.cfg.Schema}.Sanitize()
	err := c.read(ctx, c.sql.tables, []any{schema}, func(scan func(...any) error) error {
		var name string
		defer func() { missing = append(missing, name) }()
		return scan(&name)
	})
	if err != nil {
		return fmt.Errorf("look for walrelay's tables in schema %s: %w", schema, err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w in schema %s (%s): run `walrelay migrate --consumer` on this database",
			ErrNoReceipts, schema, strings.Join(missing, ", "))
	}
	return nil
}

// within runs do in a transaction of our own.
func (c *Consumer) within(ctx context.Context, do func(unit) error) error {
	u, err := c.db.begin(ctx)
	if err != nil {
		return err
	}
	if err := do(u); err != nil {
		giveUp(ctx, u)
		return &dbError{err}
	}
	if err := u.commit(ctx); err != nil {
		giveUp(ctx, u)
		return &dbError{fmt.Errorf("commit: %w", err)}
	}
	return nil
}

// read runs one query in a transaction of its own.
func (c *Consumer) read(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	return c.within(ctx, func(u unit) error { return u.query(ctx, statement, args, each) })
}

// rollbackTimeout bounds a rollback, which happens also after its context's end.
const rollbackTimeout = 5 * time.Second

func giveUp(ctx context.Context, u unit) (alive bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return u.rollback(ctx)
}
