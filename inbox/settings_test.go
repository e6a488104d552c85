package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/walrelay/walrelay/inbox"
)

// I9: a commit that the database may forget is no commit.
func TestAHandlersTransactionHasTheIsolationAndDurabilityThatWereAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		session string // of the database's connections
		level   sql.IsolationLevel
		async   bool
		want    string
	}{
		{"off", sql.LevelDefault, false, "on, read committed"},
		{"local", sql.LevelSerializable, false, "on, serializable"},
		{"on", sql.LevelRepeatableRead, false, "on, repeatable read"},
		{"remote_apply", sql.LevelReadCommitted, false, "remote_apply, read committed"},
		{"off", sql.LevelDefault, true, "off, read committed"},
	} {
		u, err := url.Parse(w.url)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("synchronous_commit", c.session)
		u.RawQuery = q.Encode()
		for _, driver := range []string{"pgx", "sql"} {
			name := strings.ReplaceAll(fmt.Sprint(driver, " ", c.session, " ", c.level, " ", c.async), " ", "-")
			cfg := w.config(name)
			cfg.DB, cfg.Isolation, cfg.AsyncCommit = newPool(t, u.String()), c.level, c.async
			got := ""
			const show = `SELECT current_setting('synchronous_commit') || ', ' || current_setting('transaction_isolation')`
			var consumer runner
			if driver == "pgx" {
				p := w.raw(cfg)
				inbox.On(p, "placed", func(ctx context.Context, tx pgx.Tx, _ inbox.Event[[]byte]) error {
					return tx.QueryRow(ctx, show).Scan(&got)
				})
				consumer = p
			} else {
				db := stdlib.OpenDBFromPool(cfg.DB)
				defer db.Close() //nolint:errcheck // a test's pool
				cfg.DB = nil
				p, err := inbox.NewSQL(db, cfg)
				if err != nil {
					t.Fatal(err)
				}
				inbox.OnSQL(p, "placed", func(ctx context.Context, tx *sql.Tx, _ inbox.Event[[]byte]) error {
					return tx.QueryRowContext(ctx, show).Scan(&got)
				})
				consumer = p
			}
			for n := range 2 { // on a connection that is new, and on one that is known
				if _, err := consumer.Apply(t.Context(), inbox.Message{ID: fmt.Sprint(n), Type: "placed"}); err != nil || got != c.want {
					t.Errorf("%s: %v, the handler saw %q, want %q", name, err, got, c.want)
				}
			}
		}
	}
}
