package walrelay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
	"github.com/walrelay/walrelay/migrations"
)

// Here is what makes a relay wait or halt before it has delivered anything.
// Doctor reports the same errors, so both use the same words.

// checkServer sees that the server, the schema and the role's rights on it are
// as a relay needs them.
func checkServer(ctx context.Context, conn *pgx.Conn, c *Config) (slot.Server, error) {
	server, err := slot.InspectServer(ctx, conn, "")
	if err != nil {
		return server, err
	}
	if err := server.Check(); err != nil {
		return server, err
	}
	if _, err := checkSchema(ctx, conn, c.Schema); err != nil {
		return server, err
	}
	return server, witness.CheckRights(ctx, conn, c.Schema)
}

// checkSchema sees that the relay's own tables are there, as this version makes
// them. It gives what else is missing.
func checkSchema(ctx context.Context, conn *pgx.Conn, schema string) (others []string, err error) {
	lack, err := migrations.Lacking(ctx, conn, schema)
	if err != nil {
		return nil, err
	}
	if len(lack.Tables) > 0 {
		return lack.Others, &witness.MissingError{Schema: schema, Err: errors.New("missing: " + strings.Join(lack.Tables, ", "))}
	}
	return lack.Others, nil
}

// lostSlot is the end of delivery where the server has removed what the slot
// needed.
func lostSlot(name string, info slot.Info) *HaltError {
	return &HaltError{
		Object:  "slot " + strconv.Quote(name),
		Problem: "is lost: PostgreSQL has removed WAL that it needed (max_slot_wal_keep_size, or a timeout), so events after LSN " + info.Confirmed.String() + " may not have been sent",
		Fix:     "nothing is delivered until this gap is dealt with",
	}
}

// missingSlot is the end of delivery where a slot is not there although the
// relay has delivered from it; nil where it never has.
func missingSlot(name string, found witness.Witness) *HaltError {
	if !found.Exists {
		return nil
	}
	return missingSlotError(name, "is missing, though this relay has confirmed LSN "+found.ConfirmedLSN.String()+" to it")
}

// missingSlotOf is the same where only a stream remembers.
func missingSlotOf(name, stream string, tail publish.Tail) *HaltError {
	return missingSlotError(name, fmt.Sprintf("is missing, though stream %q holds events of this source up to %s", stream, tail.Position))
}

func missingSlotError(name, problem string) *HaltError {
	return &HaltError{
		Object: "slot " + strconv.Quote(name), Problem: problem,
		Fix: "events since then may not have been sent; nothing is delivered until this gap is dealt with",
	}
}

// checkColumns sees that what is published of each outbox table has the columns
// that are mapped.
func checkColumns(ctx context.Context, q slot.Querier, c *Config, to *router.Router, t Table) ([]slot.Column, error) {
	columns, err := slot.InspectColumns(ctx, q, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	p, err := slot.InspectPublication(ctx, q, c.Publication, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	have := p.ColumnList
	if have == nil {
		for _, column := range columns {
			have = append(have, column.Name)
		}
	}
	return columns, to.CheckColumns(t.Schema, t.Name, have)
}

// streamProblems says what is in the way of writing to a stream as it is to be
// written to.
func streamProblems(c *Config, st Stream, f publish.StreamFacts) []publish.Problem {
	if st.Shared {
		return publish.LaneProblems(f, c.AckTimeout)
	}
	return publish.Problems(f)
}
