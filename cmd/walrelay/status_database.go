package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// databaseStatus is what PostgreSQL knows of a source.
type databaseStatus struct {
	Verdict     string               `json:"verdict"`
	Slot        *slotReport          `json:"slot,omitempty"`    // nil: there is none
	Witness     *witnessReport       `json:"witness,omitempty"` // nil: the source never ran
	DeadLetters map[string]int       `json:"dead_letters"`      // open ones by reason; nil: not known
	Gaps        *walrelay.GapsStatus `json:"gaps,omitempty"`    // nil: not known, as Jobs then
	Jobs        []walrelay.JobStatus `json:"jobs,omitempty"`
	Problems    map[string]string    `json:"problems,omitempty"`
}

type slotReport struct {
	Name           string `json:"name"`
	Active         bool   `json:"active"`
	HolderPID      int    `json:"holder_pid,omitempty"`
	HolderName     string `json:"holder_name,omitempty"`
	WALStatus      string `json:"wal_status"`
	ConfirmedLSN   string `json:"confirmed_lsn"`
	LagBytes       int64  `json:"lag_bytes"`
	RetainedBytes  int64  `json:"retained_bytes"`
	SafeBytes      *int64 `json:"safe_bytes,omitempty"`
	CatalogXminAge *int64 `json:"catalog_xmin_age,omitempty"`
}

type witnessReport struct {
	Host         string                         `json:"host"`
	PID          int                            `json:"pid"`
	Epoch        uint32                         `json:"epoch"`
	ConfirmedLSN string                         `json:"confirmed_lsn"`
	UpdatedAt    time.Time                      `json:"updated_at"`
	Streams      map[string]witness.StreamState `json:"streams"`
}

// askDatabase looks at slot, witness and dead letters. What cannot be read for
// want of a right or a table is named and does not hide the rest.
func (c *statusCmd) askDatabase(ctx context.Context) (*databaseStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := c.open(ctx, "walrelay status")
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the process ends
	found := &databaseStatus{Problems: map[string]string{}}
	info, err := slot.Inspect(ctx, conn, c.slotName())
	if err != nil {
		return nil, err
	}
	found.Verdict = verdict(c.slotName(), info)
	if info.Exists {
		found.Slot = reportSlot(c.slotName(), info)
	}
	w, err := witness.Read(ctx, conn, c.Schema, c.Source)
	switch {
	case err != nil:
		found.Problems["witness"] = err.Error()
	case w.Exists:
		found.Witness = &witnessReport{
			Host: w.Host, PID: w.PID, Epoch: w.Epoch, ConfirmedLSN: w.ConfirmedLSN.String(), UpdatedAt: w.UpdatedAt, Streams: w.Streams,
		}
	}
	if found.DeadLetters, err = deadletter.Open(ctx, conn, c.Schema, c.Source); err != nil {
		found.Problems["dead_letters"] = err.Error()
	}
	if found.Gaps, found.Jobs, err = walrelay.Asked(ctx, conn, c.Schema, c.Source); err != nil {
		found.Problems["gaps"] = err.Error()
	}
	return found, nil
}

func verdict(name string, i slot.Info) string {
	object := "slot " + strconv.Quote(name)
	switch {
	case !i.Exists:
		return object + " does not exist: walrelay migrate makes it, or the first start of walrelay run"
	case i.WALStatus == "lost":
		return object + " is lost: PostgreSQL has removed WAL that it needed"
	case i.Active:
		return fmt.Sprintf("%s is held by pid %d (%s); whether it delivers, only that process knows", object, i.HolderPID, firstOf(i.HolderName, "without a name"))
	}
	return object + " is held by nobody: no relay runs, or it cannot reach PostgreSQL; WAL is kept until one does"
}

func reportSlot(name string, i slot.Info) *slotReport {
	r := &slotReport{
		Name: name, Active: i.Active, HolderPID: i.HolderPID, HolderName: i.HolderName, WALStatus: i.WALStatus,
		ConfirmedLSN: i.Confirmed.String(), RetainedBytes: i.RetainedBytes,
	}
	if i.ServerWALEnd > i.Confirmed {
		r.LagBytes = int64(i.ServerWALEnd - i.Confirmed) //nolint:gosec // a server's WAL is shorter than 2^63 bytes
	}
	if i.SafeBytes >= 0 {
		r.SafeBytes = &i.SafeBytes
	}
	if i.CatalogXminAge >= 0 {
		r.CatalogXminAge = &i.CatalogXminAge
	}
	return r
}
