package main

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/libpq"
)

// database are the flags of every verb that needs PostgreSQL.
type database struct {
	DatabaseURL          string `help:"PostgreSQL, as a URL or key=value pairs; PG* variables and password files count." placeholder:"URL" secret:"dsn"`
	DatabasePasswordFile string `help:"File with the password for PostgreSQL, read at each connect." placeholder:"FILE"`
	Source               string `help:"Name of the source; slot, publication, stream and subjects follow from it." default:"walrelay"`
	Slot                 string `help:"Replication slot (default: the source)." placeholder:"NAME"`
	Publication          string `help:"Publication (default: the slot)." placeholder:"NAME"`
	Schema               string `help:"Schema of walrelay's own tables." default:"walrelay"`
}

// slotName is the slot that is meant where none is named.
func (d *database) slotName() string {
	return firstOf(d.Slot, strings.ReplaceAll(strings.ToLower(d.Source), "-", "_"))
}

// password gives the way to the password, nil if the URL has it.
func (d *database) password() func() (string, error) {
	if d.DatabasePasswordFile == "" {
		return nil
	}
	return func() (string, error) { return readSecret(d.DatabasePasswordFile) }
}

// connection is the configuration of a SQL connection of a verb that is no
// relay. Its error names a setting and repeats nothing of it.
func (d *database) connection(application string) (*pgx.ConnConfig, error) {
	if d.DatabaseURL == "" {
		return nil, &walrelay.ConfigError{Field: "DatabaseURL", Reason: "is not set; give a URL such as postgres://relay@db/shop"}
	}
	cfg, err := libpq.Parse(d.DatabaseURL)
	if err != nil {
		return nil, &walrelay.ConfigError{Field: "DatabaseURL", Reason: err.Error()}
	}
	if ask := d.password(); ask != nil {
		if cfg.Password, err = ask(); err != nil {
			return nil, fmt.Errorf("read the password for PostgreSQL: %w", err)
		}
	}
	cfg.RuntimeParams["application_name"] = application
	return cfg, nil
}

// checkDatabase finds what is wrong with the flags without a server.
func (d *database) checkDatabase() error {
	return readable("DatabasePasswordFile", d.DatabasePasswordFile)
}
