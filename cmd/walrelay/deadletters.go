package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/libpq"
)

type deadlettersCmd struct {
	Consumer string `help:"Those of this consumer, in its own database, in place of the relay's." placeholder:"NAME"`

	List    deadlettersListCmd    `cmd:"" help:"List dead letters, oldest first; without --all those that nobody has dealt with."`
	Show    deadlettersShowCmd    `cmd:"" help:"Show one dead letter with its headers and payload."`
	Requeue deadlettersRequeueCmd `cmd:"" help:"Try dead letters once more: the running relay does, or a consumer's service."`
	Discard deadlettersDiscardCmd `cmd:"" help:"Give dead letters up for good; the record stays."`

	Accept deadlettersAcceptCmd `cmd:"" help:"Let a relay that holds delivery because of many refusals record them as dead letters, for an hour."`
}

type deadlettersListCmd struct {
	database `embed:""`

	Open   bool   `help:"Only those that nobody has dealt with; this is the default." xor:"which"`
	All    bool   `help:"The resolved ones too." xor:"which"`
	Reason string `help:"Only those with this reason." placeholder:"REASON"`
	Since  string `help:"Only those recorded since: a duration such as 10m (ago) or a time such as 2026-01-02T15:04:05Z." placeholder:"TIME"`
	JSON   bool   `name:"json" help:"One JSON object a dead letter, without its payload."`
}

type deadlettersShowCmd struct {
	database `embed:""`

	ID   int64 `arg:"" help:"As in deadletters list."`
	JSON bool  `name:"json" help:"One JSON object."`
}

// sinceTime reads a duration before now or a time; empty is the zero time.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, &walrelay.ConfigError{
			Field: "Since", Value: text, Reason: "use a duration such as 10m, or a time such as 2026-01-02T15:04:05Z",
		}
	}
	return at, nil
}

func (c *deadlettersListCmd) check() error {
	_, err := sinceTime(c.Since, time.Now())
	_, noURL := c.connection("")
	return errors.Join(err, noURL, c.checkDatabase())
}

func (c *deadlettersShowCmd) check() error {
	_, noURL := c.connection("")
	return errors.Join(noURL, c.checkDatabase())
}

// open connects for one verb.
func (d *database) open(ctx context.Context, application string) (*pgx.Conn, error) {
	cfg, err := d.connection(application)
	if err != nil {
		return nil, &usageError{err}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", libpq.Explain(err))
	}
	return conn, nil
}

// Run lists page by page.
func (c *deadlettersListCmd) Run(e *env, of *deadlettersCmd) error {
	since, err := sinceTime(c.Since, time.Now())
	if err != nil {
		return &usageError{err}
	}
	conn, err := c.open(e.ctx, "walrelay deadletters")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	if of.Consumer != "" {
		box := consumerBox{conn: conn, schema: c.Schema, consumer: of.Consumer}
		return box.list(e, deadletter.ConsumerFilter{Reason: c.Reason, All: c.All, Since: since}, c.JSON)
	}
	filter := deadletter.Filter{Source: c.Source, Reason: c.Reason, All: c.All, Since: since, Limit: 1000}
	table := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	if !c.JSON {
		_, _ = fmt.Fprintln(table, "ID\tRECORDED\tREASON\tTABLE\tAGGREGATE\tEVENT\tBYTES\tSTATE\tEVENT ID")
	}
	encoder := json.NewEncoder(e.stdout)
	for {
		letters, err := deadletter.List(e.ctx, conn, c.Schema, filter)
		if err != nil {
			return err
		}
		for i := range letters {
			l := &letters[i]
			if c.JSON {
				if err := encoder.Encode(shown(l, false)); err != nil {
					return err
				}
				continue
			}
			_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s/%s\t%s\t%d\t%s\t%s\n", l.ID, l.At.UTC().Format(time.RFC3339), l.Reason, l.Table,
				oneLine(l.AggregateType), oneLine(l.AggregateID), oneLine(l.EventType), l.PayloadSize, letterState(l), oneLine(l.EventID))
		}
		if len(letters) < filter.Limit {
			return table.Flush()
		}
		filter.After = letters[len(letters)-1].ID
	}
}

func letterState(l *deadletter.Letter) string {
	switch {
	case !l.ResolvedAt.IsZero():
		return firstOf(l.Resolution, "resolved")
	case l.Parks:
		return "open, others wait"
	case l.ParkedBehind > 0:
		return fmt.Sprintf("parked behind %d", l.ParkedBehind)
	}
	return "open"
}

// oneLine makes a text of an event fit for one cell of a terminal: what is no
// printable text is quoted.
func oneLine(s string) string {
	const longest = 60
	if len(s) > longest {
		cut := longest
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	if strings.ContainsFunc(s, hostile) || strings.ContainsAny(s, "\t\n") {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// hostile are characters that would steer a terminal.
func hostile(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' || r == 0x7f || r == utf8.RuneError || r >= 0x80 && r < 0xa0
}

// shownLetter is a dead letter as JSON.
type shownLetter struct {
	ID            int64           `json:"id"`
	Source        string          `json:"source"`
	Position      string          `json:"position,omitempty"`
	EventID       string          `json:"event_id,omitempty"`
	Table         string          `json:"table"`
	AggregateType string          `json:"aggregate_type,omitempty"`
	AggregateID   string          `json:"aggregate_id,omitempty"`
	EventType     string          `json:"event_type,omitempty"`
	Stream        string          `json:"stream,omitempty"`
	Subject       string          `json:"subject,omitempty"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	CommittedAt   time.Time       `json:"committed_at,omitzero"`
	At            time.Time       `json:"at"`
	State         string          `json:"state"`
	ParkedBehind  int64           `json:"parked_behind,omitempty"`
	ResolvedAt    time.Time       `json:"resolved_at,omitzero"`
	ResolvedBy    string          `json:"resolved_by,omitempty"`
	Resolution    string          `json:"resolution,omitempty"`
	Sequence      int64           `json:"sequence,omitempty"`
	Late          bool            `json:"late,omitempty"` // newer events of its aggregate may be stored
	PayloadSize   int64           `json:"payload_size"`
	PayloadNull   bool            `json:"payload_null,omitempty"`
	PayloadSHA256 string          `json:"payload_sha256,omitempty"`
	Headers       json.RawMessage `json:"headers,omitempty"`
	Payload       []byte          `json:"payload,omitempty"` // base64, only of show
}

func shown(l *deadletter.Letter, whole bool) shownLetter {
	s := shownLetter{
		ID: l.ID, Source: l.Source, EventID: l.EventID, Table: l.Table, AggregateType: l.AggregateType, AggregateID: l.AggregateID,
		EventType: l.EventType, Stream: l.Stream, Subject: l.Subject, Reason: l.Reason, Error: l.Error, CommittedAt: l.CommittedAt,
		At: l.At, State: letterState(l), ParkedBehind: l.ParkedBehind, ResolvedAt: l.ResolvedAt, ResolvedBy: l.ResolvedBy,
		Resolution: l.Resolution, Sequence: l.Sequence, Late: l.Late, PayloadSize: l.PayloadSize, PayloadNull: l.PayloadNull,
		PayloadSHA256: hex.EncodeToString(l.PayloadHash),
	}
	if !l.Position.IsZero() {
		s.Position = l.Position.String()
	}
	if whole {
		s.Payload = l.Payload
		if json.Valid(l.RowHeaders) {
			s.Headers = l.RowHeaders
		}
	}
	return s
}

// Run shows one.
func (c *deadlettersShowCmd) Run(e *env, of *deadlettersCmd) error {
	conn, err := c.open(e.ctx, "walrelay deadletters")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	if of.Consumer != "" {
		box := consumerBox{conn: conn, schema: c.Schema, consumer: of.Consumer}
		return box.show(e, c.ID, c.JSON)
	}
	letter, err := deadletter.Get(e.ctx, conn, c.Schema, c.ID)
	if errors.Is(err, deadletter.ErrNone) {
		return fmt.Errorf("%w; walrelay deadletters list --all shows which there are", err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(shown(&letter, true))
	}
	return printLetter(e.stdout, &letter)
}

func printLetter(out io.Writer, l *deadletter.Letter) error {
	s := shown(l, true)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, value) // Flush tells
		}
	}
	line("id", fmt.Sprint(s.ID))
	line("state", s.State)
	line("reason", s.Reason)
	line("error", s.Error)
	line("source", s.Source)
	line("position", s.Position)
	line("event id", oneLine(s.EventID))
	line("table", s.Table)
	line("aggregate", oneLine(s.AggregateType)+"/"+oneLine(s.AggregateID))
	line("event type", oneLine(s.EventType))
	line("stream", s.Stream)
	line("subject", oneLine(s.Subject))
	line("committed", stamp(s.CommittedAt))
	line("recorded", stamp(s.At))
	line("resolved", stamp(s.ResolvedAt))
	line("resolved by", s.ResolvedBy)
	line("headers", string(l.RowHeaders))
	line("payload", payloadText(l))
	return w.Flush()
}

func payloadText(l *deadletter.Letter) string {
	switch {
	case l.PayloadNull:
		return "null"
	case l.Payload == nil:
		return fmt.Sprintf("%d bytes, too large to be copied; the row stays in %s (SHA-256 %x)", l.PayloadSize, l.Table, l.PayloadHash)
	case utf8.Valid(l.Payload) && !strings.ContainsFunc(string(l.Payload), hostile):
		return string(l.Payload)
	}
	return fmt.Sprintf("%d bytes that are no plain text; --json shows them in base64", len(l.Payload))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
