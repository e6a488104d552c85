package testenv

import "github.com/walrelay/walrelay/internal/testenv/pgbin"

// DefaultVersion is the major version of PostgreSQL that tests use when they do
// not ask for one: $WALRELAY_TEST_PG, or 15.
func DefaultVersion() (int, error) { return pgbin.DefaultVersion() }

// PostgresInstalled finds the folder with the programs of a major version of
// PostgreSQL: in walrelay's cache ($WALRELAY_PG_CACHE names another), where
// Debian puts them, or in PATH.
func PostgresInstalled(version int) (binDir string, ok bool) { return pgbin.Find(version) }
