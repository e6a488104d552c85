package walrelay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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

// brokenSlot says that the slot cannot deliver what was committed behind what
// this relay has confirmed; nil where it can, or where nothing was delivered
// yet. It is a gap, which is healed or not as OnGap says.
func brokenSlot(name string, info slot.Info, found witness.Witness) *HaltError {
	halt := &HaltError{
		Object: "slot " + strconv.Quote(name),
		Fix:    "let it be made again, and what is missing be published from the outbox table, with: walrelay replay --missing; or with on_gap: heal",
	}
	switch {
	case info.Exists && info.WALStatus == "lost":
		halt.Problem = "is lost: PostgreSQL has removed WAL that it needed (max_slot_wal_keep_size, or a timeout), so events after LSN " + info.Confirmed.String() + " may not have been sent"
	case !info.Exists && found.ConfirmedLSN > 0:
		halt.Problem = "is missing, though this relay has confirmed LSN " + found.ConfirmedLSN.String() + " to it"
	case !info.Exists && found.Began():
		halt.Problem = "is missing, though this relay has begun to read from it"
	default:
		return nil
	}
	return halt
}

// forgottenBy is where only a stream remembers that there was a source.
func forgottenBy(source, stream string, tail publish.Tail) *HaltError {
	return &HaltError{
		Object:  "source " + strconv.Quote(source),
		Problem: fmt.Sprintf("has never run with this database, though stream %q holds its events up to %s", stream, tail.Position),
		Fix:     "connect the database that these events came from; or let this one continue them with: walrelay adopt --database",
	}
}

// openGap says what an open gap waits for: why it is not healed unasked.
func openGap(g *witness.Gap, events, why string) *HaltError {
	fix := "publish them from the outbox table with: walrelay replay --missing; or let them be with: walrelay replay --missing --discard"
	if g.Kind == witness.GapNewStream {
		fix += "; or let the stream go on from here with: walrelay adopt --stream " + g.Stream
	}
	oldest := ""
	if !g.Detail.Oldest.IsZero() {
		oldest = ", the oldest written at " + g.Detail.Oldest.UTC().Format(time.RFC3339)
	}
	return &HaltError{
		Object:  fmt.Sprintf("gap %d (%s)", g.ID, g.Kind),
		Problem: fmt.Sprintf("found at %s, is open: %s may be in no stream%s%s", g.FoundAt.UTC().Format(time.RFC3339), events, oldest, why),
		Fix:     fix,
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
