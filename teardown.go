package walrelay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
	"github.com/walrelay/walrelay/migrations"
)

// A TeardownReport is what [Teardown] finds and does.
type TeardownReport struct {
	Slot string `json:"slot"`
	// ConfirmedLSN is up to where the slot has delivered; empty where there is
	// no slot. RetainedBytes is the WAL that the server keeps for it.
	ConfirmedLSN  string `json:"confirmed_lsn,omitempty"`
	RetainedBytes int64  `json:"retained_bytes"`
	// Publication is to be dropped; PublicationOurs is false for one that
	// walrelay migrate has not made, which stays.
	Publication     string `json:"publication,omitempty"`
	PublicationOurs bool   `json:"publication_ours"`
	// Unproven is how many rows of the outbox tables are not known to be
	// delivered.
	Unproven int64 `json:"unproven_rows"`
	// Letters, Gaps and Jobs are open: dead letters, gaps, and what was asked
	// for and is not done.
	Letters int `json:"open_dead_letters"`
	Gaps    int `json:"open_gaps"`
	Jobs    int `json:"open_jobs"`
	// Dropped says that it is done.
	Dropped bool `json:"dropped"`
}

// Nothing says that there is nothing to be dropped.
func (t TeardownReport) Nothing() bool { return t.ConfirmedLSN == "" && !t.PublicationOurs }

// Teardown ends a source: it drops its slot, so that the server keeps no WAL
// for it any more, and the publication that migrate made. Tables, rows, dead
// letters and what is known of the source stay, so that a relay that is started
// again finds what was not delivered. It looks, asks go on, and does it if that
// says yes. A slot that a relay holds is an error.
func Teardown(ctx context.Context, cfg Config, goOn func(TeardownReport) (bool, error)) (TeardownReport, error) {
	found := TeardownReport{}
	cfg.NATS = or(cfg.NATS, "nats://127.0.0.1:4222") // it is not asked
	conn, err := openVerb(ctx, &cfg, "teardown")
	if err != nil {
		return found, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if err := found.look(ctx, conn, &cfg); err != nil {
		return found, err
	}
	if yes, err := goOn(found); err != nil || !yes || found.Nothing() {
		return found, err
	}
	if found.ConfirmedLSN != "" {
		if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, cfg.Slot); err != nil {
			return found, fmt.Errorf("drop slot %q: %w", cfg.Slot, err)
		}
	}
	if found.PublicationOurs {
		if err := migrations.DropPublication(ctx, conn, cfg.Publication); err != nil {
			return found, err
		}
	}
	found.Dropped = true
	return found, nil
}

func (t *TeardownReport) look(ctx context.Context, conn *pgx.Conn, cfg *Config) error {
	t.Slot = cfg.Slot
	info, err := slot.Inspect(ctx, conn, cfg.Slot)
	if err != nil {
		return err
	}
	if info.Exists {
		var database string
		if err := conn.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
			return fmt.Errorf("ask for the database's name: %w", err)
		}
		if err := info.Check(cfg.Slot, database); err != nil {
			return err
		}
		if info.Active {
			return fmt.Errorf("%w; stop that relay first", &slot.InUseError{Slot: cfg.Slot, PID: info.HolderPID, Application: info.HolderName, Since: info.HolderSince})
		}
		t.ConfirmedLSN, t.RetainedBytes = info.Confirmed.String(), info.RetainedBytes
	}
	exists, ours, err := migrations.Ours(ctx, conn, cfg.Publication)
	if err != nil {
		return err
	}
	if exists {
		t.Publication, t.PublicationOurs = cfg.Publication, ours
	}
	if _, err := checkSchema(ctx, conn, cfg.Schema); err != nil {
		return err
	}
	if t.Unproven, err = unproven(ctx, conn, cfg); err != nil {
		return err
	}
	letters, err := deadletter.Open(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return err
	}
	for _, n := range letters {
		t.Letters += n
	}
	gaps, err := witness.OpenGaps(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return err
	}
	jobs, err := job.Open(ctx, conn, cfg.Schema, cfg.Source)
	t.Gaps, t.Jobs = len(gaps), len(jobs)
	return err
}
