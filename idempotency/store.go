package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says where effects are kept. The zero value is what
// `walrelay migrate --consumer` makes.
type Config struct {
	// Schema holds the table effect, without quotes. Empty means walrelay.
	Schema string
	// Scope separates the keys of services that share a database: letters,
	// digits, dots, underscores and hyphens, at most 64. Empty is a scope of
	// its own. Another scope starts afresh.
	Scope string
	// SettleTimeout is how long Do tries to store the outcome of a call that
	// was made, also when its context has ended. Zero means 10 s.
	SettleTimeout time.Duration
}

// A Store keeps what became of each key. It is safe for concurrent use, holds
// no connection between calls, and needs no closing.
type Store struct {
	db     driver
	cfg    Config
	effect string // the table, quoted
}

// New checks that the table is there and usable, and gives a Store over a pool
// of pgx. The pool stays the caller's.
func New(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, errors.New("idempotency: the pool is nil; open one with pgxpool.New")
	}
	return newStore(ctx, pgxDriver{pool}, cfg)
}

// NewSQL is [New] for database/sql, with any driver for PostgreSQL.
func NewSQL(ctx context.Context, db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("idempotency: the database is nil; open one with sql.Open")
	}
	return newStore(ctx, newSQLDriver(db), cfg)
}

const (
	maxKey   = 1024 // bytes, as the table's check
	maxScope = 64
)

func newStore(ctx context.Context, db driver, cfg Config) (*Store, error) {
	if cfg.Schema == "" {
		cfg.Schema = "walrelay"
	}
	if cfg.SettleTimeout == 0 {
		cfg.SettleTimeout = 10 * time.Second
	}
	if cfg.SettleTimeout < 0 {
		return nil, fmt.Errorf("idempotency: Config.SettleTimeout is %s; leave it zero for 10 s or set it above", cfg.SettleTimeout)
	}
	if len(cfg.Scope) > maxScope || strings.Trim(cfg.Scope, scopeLetters) != "" {
		return nil, fmt.Errorf("idempotency: Config.Scope %.80q is not up to %d letters, digits, dots, underscores and hyphens", cfg.Scope, maxScope)
	}
	s := &Store{db: db, cfg: cfg, effect: quote(cfg.Schema) + ".effect"}
	if err := s.check(ctx); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return s, nil
}

const scopeLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// check asks for every column by name, so that a table of an older version is
// found at start and not by the first payment.
func (s *Store) check(ctx context.Context) error {
	err := s.db.query(ctx, `SELECT scope, key, request, state, token, lease_until, holder, attempts, result, error, at, ended_at, resolved_by
FROM `+s.effect+` LIMIT 0`, nil, func(func(...any) error) error { return nil })
	switch sqlState(err) {
	case "42P01", "3F000", "42703": // undefined_table, invalid_schema_name, undefined_column
		return fmt.Errorf("table %s is missing or older than this version: run `walrelay migrate --consumer`: %w", s.effect, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("this role may not read table %s: GRANT USAGE ON SCHEMA %s, GRANT SELECT, INSERT, UPDATE, DELETE ON %s: %w",
			s.effect, quote(s.cfg.Schema), s.effect, err)
	}
	if err != nil {
		return fmt.Errorf("read table %s: %w", s.effect, err)
	}
	return nil
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
