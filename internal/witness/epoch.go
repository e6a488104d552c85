package witness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
)

// An Identity is what a server says of itself on a replication connection.
type Identity struct {
	SystemID string
	Timeline uint32
	WALEnd   envelope.LSN
	// History is the content of the timeline's history file; nil on the
	// first timeline.
	History []byte
}

// An Epoch is one history of the database. LSNs of two histories are not
// comparable.
type Epoch struct {
	Number   uint32
	SystemID string
	Timeline uint32
	FirstLSN envelope.LSN
	// Adopted says that it began by an operator's word, At that time.
	Adopted bool
	At      time.Time
}

// reasonAdopted is why an epoch begins that continues no history.
const reasonAdopted = "adopted"

// A Judgement is what an identity means for the epochs that are known.
type Judgement int

const (
	// First says that no epoch is known, the source starts here.
	First Judgement = iota
	// Same says that the history of the newest epoch goes on.
	Same
	// Promoted says that a standby of it was promoted at a switch point.
	Promoted
)

// A HistoryError says that the database does not continue the history that
// this source was delivered from.
type HistoryError struct {
	Known  Epoch
	Now    Identity
	Reason string
}

// Error names both sides and the way out.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("this database is of another history: %s (known: system %s, timeline %d; connected: system %s, timeline %d); "+
		"connect the right server; or let this one continue the source with: walrelay adopt --database",
		e.Reason, e.Known.SystemID, e.Known.Timeline, e.Now.SystemID, e.Now.Timeline)
}

// Judge compares a server with the newest known epoch. For a promotion it gives
// the switch point: what was committed before it keeps its epoch. It is pure.
func Judge(epochs []Epoch, now Identity) (Judgement, envelope.LSN, error) {
	if len(epochs) == 0 {
		return First, 0, nil
	}
	known := epochs[len(epochs)-1]
	switch {
	case known.SystemID != now.SystemID:
		return 0, 0, &HistoryError{Known: known, Now: now, Reason: "it is another cluster"}
	case now.Timeline < known.Timeline:
		return 0, 0, &HistoryError{Known: known, Now: now, Reason: "its timeline is an earlier one, as on an old primary or a restored backup"}
	case now.Timeline == known.Timeline:
		return Same, 0, nil
	}
	at, err := switchPoint(now.History, known.Timeline)
	if err != nil {
		return 0, 0, &HistoryError{Known: known, Now: now, Reason: err.Error()}
	}
	return Promoted, at, nil
}

// switchPoint finds in a history file where the known timeline was left.
func switchPoint(history []byte, timeline uint32) (envelope.LSN, error) {
	lines := bufio.NewScanner(bytes.NewReader(history))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil || uint32(n) != timeline {
			continue
		}
		return envelope.ParseLSN(fields[1])
	}
	return 0, fmt.Errorf("its history does not come from timeline %d", timeline)
}

// follows says whether an epoch began with a promotion out of the one before.
func (e Epoch) follows(before Epoch) bool {
	return e.SystemID == before.SystemID && e.Timeline > before.Timeline
}

// EpochOf gives the number of the epoch that a commit LSN of the newest one's
// database belongs to: what was committed before a promotion keeps its epoch.
// Epochs come oldest first.
func EpochOf(epochs []Epoch, lsn envelope.LSN) uint32 {
	i := len(epochs) - 1
	for ; i > 0 && lsn < epochs[i].FirstLSN && epochs[i].follows(epochs[i-1]); i-- {
	}
	return epochs[i].Number
}

// Left says of each epoch that the newest one came from by promotions where it
// was left: it shares what was committed below.
func Left(epochs []Epoch) map[uint32]envelope.LSN {
	left := map[uint32]envelope.LSN{}
	for i := len(epochs) - 1; i > 0 && epochs[i].follows(epochs[i-1]); i-- {
		left[epochs[i-1].Number] = epochs[i].FirstLSN
	}
	return left
}

// Epochs gives a source's epochs, oldest first.
func Epochs(ctx context.Context, q Querier, schema, source string) ([]Epoch, error) {
	rows, err := q.Query(ctx, `SELECT number, system_id, timeline, first_lsn::text, reason = '`+reasonAdopted+`', at FROM `+table(schema, "epoch")+` WHERE source = $1 ORDER BY number`, source)
	if err != nil {
		return nil, missing(schema, fmt.Errorf("read the epochs of source %q: %w", source, err))
	}
	epochs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Epoch, error) {
		var e Epoch
		var first string
		if err := row.Scan(&e.Number, &e.SystemID, &e.Timeline, &first, &e.Adopted, &e.At); err != nil {
			return e, err
		}
		var err error
		e.FirstLSN, err = envelope.ParseLSN(first)
		return e, err
	})
	if err != nil {
		return nil, missing(schema, fmt.Errorf("read the epochs of source %q: %w", source, err))
	}
	return epochs, nil
}

// A MissingError says that our tables are not there.
type MissingError struct {
	Schema string
	Err    error
}

// Error names the schema and the command.
func (e *MissingError) Error() string {
	return fmt.Sprintf("schema %q lacks walrelay's tables; run walrelay migrate (%v)", e.Schema, e.Err)
}

// Unwrap gives PostgreSQL's error.
func (e *MissingError) Unwrap() error { return e.Err }

func missing(schema string, err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return &MissingError{Schema: schema, Err: err}
	}
	return err
}

// BeginEpoch notes a new epoch and gives its number. Two relays that start at
// the same time note the same one.
func BeginEpoch(ctx context.Context, q Querier, schema, source string, e Epoch, reason, by string) error {
	_, err := q.Exec(ctx, `INSERT INTO `+table(schema, "epoch")+` (source, number, system_id, timeline, first_lsn, reason, begun_by)
		VALUES ($1, $2, $3, $4, $5::text::pg_lsn, $6, $7) ON CONFLICT (source, number) DO NOTHING`,
		source, int32(e.Number), e.SystemID, int64(e.Timeline), e.FirstLSN.String(), reason, by) //nolint:gosec // epochs are few
	if err != nil {
		return fmt.Errorf("note epoch %d of source %q: %w", e.Number, source, err)
	}
	return nil
}
