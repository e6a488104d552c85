package walrelay_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
)

// PgBouncer up to 1.22 knows no replication connections; a relay's settings no
// version passes on.
func TestA35APoolerInBetweenIsNamed(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{})
	p := newPatient(t, server.URL("postgres"), true)
	direct := p.cfg.DatabaseURL
	through := func(cfg testenv.PgBouncerConfig) string {
		cfg.Postgres = server
		return "postgres://postgres@" + envtest.PgBouncer(t, cfg) + "/postgres?sslmode=disable"
	}

	p.cfg.ReplicationURL = through(testenv.PgBouncerConfig{Ignore: slices.Collect(maps.Keys(witness.PinSettings()))})
	d := p.examine()
	d.only("replication connection")
	p.sameWords(d.want("replication connection", fail, "looks like a pooler", "unsupported startup parameter", "--replication-url"))

	p.cfg.DatabaseURL, p.cfg.ReplicationURL = through(testenv.PgBouncerConfig{}), direct
	d = p.examine()
	d.only("SQL connection")
	p.sameWords(d.want("SQL connection", fail, "looks like a pooler", "does not pass on the settings", "--database-url"))
	d.want("replication connection", ok)

	// One that is told to take the settings and forget them lets us in.
	p.cfg.DatabaseURL = through(testenv.PgBouncerConfig{Mode: "session", Ignore: slices.Collect(maps.Keys(p.settings()))})
	d = p.examine()
	d.only()
	d.want("SQL connection", warn, "looks like a pooler", "LISTEN")
}

// settings are those that Doctor makes for its session.
func (p *patient) settings() map[string]string {
	settings := witness.PinSettings()
	settings["default_transaction_read_only"] = "on"
	return settings
}
