package walrelay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/witness"
)

// GapsStatus are the gaps of the source: committed events that the slot can no
// longer deliver, or that the broker no longer has.
type GapsStatus struct {
	LookedAt time.Time `json:"looked_at"`
	// Open are those that nobody has dealt with, oldest first; Newest is the
	// last one that ended, nil where none has.
	Open   []GapStatus `json:"open"`
	Newest *GapStatus  `json:"newest,omitempty"`
}

// GapKinds are the values of [GapStatus.Kind].
func GapKinds() []string {
	return []string{witness.GapSlot, witness.GapStream, witness.GapNewStream, witness.GapUnseen, witness.GapDisplaced, witness.GapPhantom}
}

// A GapStatus is one gap.
type GapStatus struct {
	ID      int64     `json:"id"`
	Kind    string    `json:"kind"`  // see GapKinds
	State   string    `json:"state"` // open, healed or accepted
	Stream  string    `json:"stream,omitempty"`
	From    string    `json:"from,omitempty"` // positions or LSNs; empty: not known
	To      string    `json:"to,omitempty"`
	Events  int64     `json:"events,omitempty"` // 0: not known
	How     string    `json:"how,omitempty"`
	FoundAt time.Time `json:"found_at"`
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// A JobStatus is one thing that the relay was asked for and that has not ended.
type JobStatus struct {
	ID       int64     `json:"id"`
	Kind     string    `json:"kind"`  // heal, backfill, replay, requeue or release
	State    string    `json:"state"` // asked or running
	Looked   int64     `json:"looked"`
	Present  int64     `json:"present"` // that were there already
	Sent     int64     `json:"sent"`
	Stored   int64     `json:"stored"`
	Refused  int64     `json:"refused"`
	Skipped  int64     `json:"skipped"`
	AskedBy  string    `json:"asked_by,omitempty"`
	At       time.Time `json:"at"`
	LookedAt time.Time `json:"looked_at"`
}

// statusGaps is how many gaps are looked at for the newest that has ended.
const statusGaps = 100

// Asked reads what a source has to heal and to do. It is for who has no relay
// to ask.
func Asked(ctx context.Context, conn *pgx.Conn, schema, source string) (*GapsStatus, []JobStatus, error) {
	return askedAt(ctx, conn, schema, source, time.Now())
}

func askedAt(ctx context.Context, conn *pgx.Conn, schema, source string, now time.Time) (*GapsStatus, []JobStatus, error) {
	gaps := &GapsStatus{LookedAt: now, Open: []GapStatus{}}
	open, err := witness.OpenGaps(ctx, conn, schema, source)
	if err != nil {
		return nil, nil, err
	}
	for i := range open {
		gaps.Open = append(gaps.Open, gapStatus(&open[i]))
	}
	recent, err := witness.Gaps(ctx, conn, schema, source, statusGaps)
	if err != nil {
		return nil, nil, err
	}
	for i := range recent {
		if g := &recent[i]; !g.EndedAt.IsZero() && (gaps.Newest == nil || g.EndedAt.After(gaps.Newest.EndedAt)) {
			status := gapStatus(g)
			gaps.Newest = &status
		}
	}
	found, err := job.Open(ctx, conn, schema, source)
	if err != nil {
		return nil, nil, err
	}
	jobs := []JobStatus{}
	for i := range found {
		j, p := &found[i], &found[i].Progress
		jobs = append(jobs, JobStatus{
			ID: j.ID, Kind: j.Kind, State: j.State, Looked: p.Looked, Present: p.Present, Sent: p.Sent, Stored: p.Stored, Refused: p.Refused,
			Skipped: p.Skipped, AskedBy: j.AskedBy, At: j.At, LookedAt: now,
		})
	}
	return gaps, jobs, nil
}

func gapStatus(g *witness.Gap) GapStatus {
	return GapStatus{
		ID: g.ID, Kind: g.Kind, State: g.State, Stream: g.Stream, From: g.From, To: g.To, Events: g.Events, How: g.Detail.How,
		FoundAt: g.FoundAt, EndedAt: g.EndedAt,
	}
}

// askedStatus is what was looked at.
type askedStatus struct {
	gaps *GapsStatus
	jobs []JobStatus
}

// lookAsked asks for gaps and jobs. Not to know them does no harm.
func (s *session) lookAsked(ctx context.Context, conn *pgx.Conn) {
	gaps, jobs, err := askedAt(ctx, conn, s.cfg.Schema, s.cfg.Source, s.r.now())
	if err != nil {
		s.r.count.asked.Store(nil)
		return
	}
	s.r.count.asked.Store(&askedStatus{gaps: gaps, jobs: jobs})
}
