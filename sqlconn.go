package walrelay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// queryTimeout bounds one statement of ours; all are short.
const queryTimeout = 20 * time.Second

func (c *Config) postgres(url, role string) (*pgx.ConnConfig, error) {
	cfg, err := libpq.Parse(url)
	if err != nil {
		field := "DatabaseURL"
		if url != c.DatabaseURL {
			field = "ReplicationURL"
		}
		return nil, &ConfigError{Field: field, Reason: err.Error()}
	}
	if c.DatabasePassword != nil {
		if cfg.Password, err = c.DatabasePassword(); err != nil {
			return nil, fmt.Errorf("read the password for PostgreSQL: %w", err)
		}
	}
	maps.Copy(cfg.RuntimeParams, witness.PinSettings())
	cfg.RuntimeParams["application_name"] = "walrelay " + c.Source + " " + role
	if role == roleSQL || role == roleCleanup {
		cfg.RuntimeParams["idle_in_transaction_session_timeout"] = idleTimeout
	}
	return cfg, nil
}

// The roles of connections whose transactions lock the witness.
const (
	roleSQL     = "sql"
	roleCleanup = "cleanup"
)

// idleTimeout is how long the server lets a transaction that locks the witness
// wait for its next statement. Such a transaction is a few statements long; one
// that stands still is that of a process which was stopped, or cut off, and it
// would hold up the takeover by another relay until somebody ended it.
const idleTimeout = "5s"

// sqlConn is the one SQL connection on which the session writes. Its users
// take turns; each statement is bounded.
//
// A statement ends with life, which is the session's, not with the context of
// the goroutine that asked for it: pgx hangs up when a statement is cut short,
// and the last one of a goroutine that is told to stop would take the
// connection with it that the session needs for its last words.
type sqlConn struct {
	life context.Context //nolint:containedctx // see above
	mu   sync.Mutex
	conn *pgx.Conn
}

func openSQL(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		if refused, ok := errors.AsType[*slot.MisfitError](slot.Refusal(err, slot.ForSQL, slot.Server{})); ok {
			return nil, refused
		}
		return nil, fmt.Errorf("open a SQL connection: %w", libpq.Explain(err))
	}
	return conn, nil
}

// open makes a SQL connection of its own for a part of the relay or a verb.
func (c *Config) open(ctx context.Context, role string) (*pgx.Conn, error) {
	cfg, err := c.postgres(c.DatabaseURL, role)
	if err != nil {
		return nil, err
	}
	return openSQL(ctx, cfg)
}

// openVerb completes the configuration of a verb and connects to its database.
func openVerb(ctx context.Context, cfg *Config, verb string) (*pgx.Conn, error) {
	complete, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	*cfg = complete
	return cfg.open(ctx, verb)
}

// do runs f with the connection.
func (s *sqlConn) do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)() //nolint:contextcheck // see life
	return f(ctx, s.conn)
}

func (s *sqlConn) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.Close(ctx)
}

// replicationConfig is what the replication connection needs of cfg.
func replicationConfig(cfg *pgx.ConnConfig) *pgconn.Config { return &cfg.Config }
