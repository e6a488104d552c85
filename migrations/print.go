package migrations

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Print writes the SQL of everything that Apply does on a server where nothing
// is there yet, in its order, for psql or any client that runs statement after
// statement. It can be run twice. The slot is the last statement, in a
// transaction of its own.
func Print(w io.Writer, cfg Config) error {
	cfg, err := cfg.filled()
	if err != nil {
		return fmt.Errorf("settings of migrate: %w", err)
	}
	b := bufio.NewWriter(w)
	p := printer{Writer: b}
	p.line("-- walrelay, outbox side. Stop at the first error: psql -v ON_ERROR_STOP=1 -f FILE")
	p.begin(cfg.Schema)
	if cfg.Partitioned {
		err = errors.Join(p.set(outboxSet.partitioned(), cfg.Schema), p.set(partsSet, cfg.Schema))
		p.partitions(cfg)
	} else {
		err = p.set(outboxSet, cfg.Schema)
	}
	if err != nil {
		return err
	}
	if !cfg.SchemaOnly {
		p.publication(cfg)
	}
	// Some clients run the whole text as one transaction where none is given;
	// the slot needs one that has written nothing.
	p.line("COMMIT;")
	if !cfg.SchemaOnly {
		p.slot(cfg)
	}
	return b.Flush()
}

// PrintConsumer writes the SQL of everything that Consumer does.
func PrintConsumer(w io.Writer, cfg Config) error {
	cfg, err := cfg.filled()
	if err != nil {
		return fmt.Errorf("settings of migrate: %w", err)
	}
	b := bufio.NewWriter(w)
	p := printer{Writer: b}
	p.line("-- walrelay, consumer side. Stop at the first error: psql -v ON_ERROR_STOP=1 -f FILE")
	p.begin(cfg.Schema)
	if err := p.set(consumerSet, cfg.Schema); err != nil {
		return err
	}
	p.line("COMMIT;")
	return b.Flush()
}

// A printer writes; its writer keeps the first error until it is flushed.
type printer struct{ *bufio.Writer }

func (p printer) line(s string) { _, _ = p.WriteString(s + "\n") }

// begin begins a transaction and leaves it open.
func (p printer) begin(schema string) {
	p.line("BEGIN;")
	p.line("SET LOCAL search_path = pg_catalog, pg_temp;")
	p.line(createSchema(schema))
}

func (p printer) set(s set, schema string) error {
	list, err := s.files(schema)
	if err != nil {
		return err
	}
	p.line(s.versionTable(schema))
	for _, f := range list {
		p.line(f.sql)
		p.line(fill(s.record(f.version), schema))
	}
	return nil
}

// partitions makes those that are to be there.
func (p printer) partitions(cfg Config) {
	p.line(cfg.setPartitioning())
	p.line("DO " + dollarTag + "\nBEGIN\n    LOOP\n        EXIT WHEN " + quote(cfg.Schema) + ".make_partition(" + anySize + ") IS NULL;")
	p.line("    END LOOP;\nEND\n" + dollarTag + ";")
}

// publication wraps the statements, since CREATE PUBLICATION knows no IF NOT
// EXISTS.
func (p printer) publication(cfg Config) {
	p.line("\n-- The publication comes before the slot: the slot looks at the catalogue as of the change it decodes.")
	p.line("DO " + dollarTag + "\nBEGIN")
	p.line("    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = " + literal(cfg.Publication) + ") THEN")
	for _, s := range cfg.createPublication() {
		p.line("        " + s)
	}
	p.line("    END IF;\nEND\n" + dollarTag + ";")
}

// slot leaves the choice of the options to the server's version, which is not
// known here.
func (p printer) slot(cfg Config) {
	quoted := func(server int) string {
		return literal(strings.TrimSuffix(createSlot(cfg.Slot, server), ";"))
	}
	p.line("\n-- Waits for the transactions that are open now. Needs wal_level = logical and REPLICATION.")
	p.line("-- The relay is told what was there before, and is not sent.")
	p.line("DO " + dollarTag + "\nDECLARE\n    snapshot pg_catalog.pg_snapshot := pg_catalog.pg_current_snapshot();")
	p.line("    lsn pg_catalog.pg_lsn := pg_catalog.pg_current_wal_insert_lsn();\nBEGIN")
	p.line("    IF NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = " + literal(cfg.Slot) + ") THEN")
	p.line("        IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN")
	p.line("            EXECUTE " + quoted(170000) + ";")
	p.line("        ELSE")
	p.line("            EXECUTE " + quoted(150000) + ";")
	p.line("        END IF;")
	p.line("        " + cfg.declare("snapshot", "lsn"))
	p.line("    END IF;\nEND\n" + dollarTag + ";")
}
