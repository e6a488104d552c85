package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/walrelay/walrelay"
)

type verifyCmd struct {
	database  `embed:""`
	broker    `embed:""`
	routing   `embed:""`
	retaining `embed:""`

	Since  string        `help:"Only events written since: a duration such as 24h (ago) or a time such as 2026-01-02T15:04:05Z." placeholder:"TIME"`
	Bodies bool          `help:"Compare bodies byte for byte; without it their lengths are compared, which reads the streams without bodies."`
	Wait   time.Duration `help:"How long to wait for the running relay to confirm what is there now." default:"30s"`
	JSON   bool          `name:"json" help:"One JSON object, with up to 1000 findings of each kind."`
}

// How many findings of each kind are shown.
const (
	shownFindings     = 20
	shownFindingsJSON = 1000
)

func (c *verifyCmd) config() walrelay.Config {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, DatabasePassword: c.password(), NATS: c.NATS, NATSOptions: c.options, NATSDomain: c.NATSDomain, NATSInboxPrefix: c.NATSInboxPrefix,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema,
	}
	c.into(&cfg)
	return cfg
}

// check finds all that is wrong without a server.
func (c *verifyCmd) check() error {
	_, err := walrelay.New(c.config())
	_, since := sinceTime(c.Since, time.Now())
	var embedded error
	if strings.HasPrefix(c.NATS, embeddedPrefix) {
		embedded = &walrelay.ConfigError{
			Field: "NATS", Reason: "names a JetStream inside the relay; give the address where that listens (--embedded-listen of run), such as nats://127.0.0.1:4222",
		}
	}
	for field, d := range map[string]time.Duration{"Wait": c.Wait} {
		if d <= 0 {
			err = errors.Join(err, &walrelay.ConfigError{Field: field, Value: d.String(), Reason: "use a positive duration such as 30s"})
		}
	}
	return errors.Join(err, since, embedded, c.checkDatabase(), c.checkNATS(), c.checkTables())
}

// Run compares and tells.
func (c *verifyCmd) Run(e *env) error {
	since, err := sinceTime(c.Since, time.Now())
	if err != nil {
		return &usageError{err}
	}
	how := walrelay.Verification{Since: since, Bodies: c.Bodies, Retention: c.Retention.forVerify(), Wait: c.Wait, Show: shownFindings}
	if c.JSON {
		how.Show = shownFindingsJSON
	}
	if isTerminal(e.stderr) {
		how.Progress = func(p walrelay.VerifyProgress) { showProgress(e.stderr, p) }
	}
	report, err := walrelay.Verify(e.ctx, c.config(), how)
	if how.Progress != nil {
		_, _ = fmt.Fprint(e.stderr, eraseLine)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = printVerification(e.stdout, report)
	}
	if err == nil && report.Found() {
		return errCheckFailed
	}
	return err
}

// eraseLine goes back to the line's beginning and empties it.
const eraseLine = "\r\x1b[K"

func showProgress(w io.Writer, p walrelay.VerifyProgress) {
	of := ""
	if p.Total > 0 {
		of = fmt.Sprintf(" of %d", p.Total)
	}
	_, _ = fmt.Fprintf(w, "%s%s: %d rows, %d%s messages", eraseLine, p.Phase, p.Rows, p.Messages, of)
}

func printVerification(out io.Writer, r *walrelay.VerifyReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) } // Flush tells
	line("snapshot\t%s, LSN %s", stamp(r.SnapshotAt), r.LSN)
	if !r.Since.IsZero() {
		line("since\t%s", stamp(r.Since))
	}
	for _, t := range r.Tables {
		line("table %s\t%d rows", oneLine(t.Name), t.Rows)
	}
	for _, s := range r.Streams {
		text := fmt.Sprintf("%d messages read (sequences %d to %d), %d of source %s", s.Read, s.FirstSeq, s.LastSeq, s.Ours, r.Source)
		if s.NotLive > 0 || s.Late > 0 {
			text += fmt.Sprintf("; %d not live and %d late, not judged by order", s.NotLive, s.Late)
		}
		if s.Removed > 0 {
			text += fmt.Sprintf("; %d removed", s.Removed)
		}
		line("stream %s\t%s", s.Name, text)
	}
	kinds := []struct {
		name string
		of   *[]walrelay.VerifyFinding
		n    uint64
	}{
		{"missing", &r.Missing.Shown, r.Missing.Count},
		{"unknown to the table", &r.Unknown.Shown, r.Unknown.Count},
		{"stored more than once", &r.StoredAgain.Shown, r.StoredAgain.Count},
		{"out of order", &r.OutOfOrder.Shown, r.OutOfOrder.Count},
		{"different", &r.Different.Shown, r.Different.Count},
	}
	for _, k := range kinds {
		line("%s\t%d", k.name, k.n)
	}
	for _, k := range []struct {
		name string
		n    uint64
	}{
		{"on their way", r.OnTheirWay},
		{"dead-lettered", r.DeadLettered},
		{"skipped by their route", r.Skipped},
		{"without a route", r.Unrouted},
		{"not verifiable: the stream may have removed them", r.NotVerifiable},
		{"without a row, not judged" + judged(r), r.NotJudged},
		{"replayed under a new id", r.Replayed},
		{"not compared: the present routes do not publish their rows", r.NotCompared},
	} {
		if k.n > 0 {
			line("%s\t%d", k.name, k.n)
		}
	}
	for _, k := range kinds {
		printFindings(line, k.name, *k.of, k.n)
	}
	bodies := "bodies were compared byte for byte"
	if !r.Bodies {
		bodies = "of bodies the length was compared; --bodies compares every byte"
	}
	line("")
	for _, note := range append(r.Notes, bodies) {
		line("note: %s", note)
	}
	return w.Flush()
}

func judged(r *walrelay.VerifyReport) string {
	if r.JudgedSince.IsZero() {
		return ""
	}
	return " (written before " + stamp(r.JudgedSince) + ", or after the snapshot)"
}

func printFindings(line func(string, ...any), kind string, list []walrelay.VerifyFinding, n uint64) {
	if n == 0 {
		return
	}
	line("\n%s:", kind)
	for i := range list {
		f := &list[i]
		var parts []string
		add := func(name, value string) {
			if value != "" && value != "/" {
				parts = append(parts, name+" "+oneLine(value))
			}
		}
		add("event", f.Event)
		add("table", f.Table)
		add("aggregate", f.Aggregate)
		add("type", f.EventType)
		add("created", f.CreatedAt)
		if f.Sequence > 0 {
			add("stream", fmt.Sprintf("%s sequence %d", f.Stream, f.Sequence))
		} else {
			add("stream", f.Stream)
		}
		add("position", f.Position)
		text := strings.Join(parts, ", ")
		if f.Detail != "" {
			text += ": " + sanitize(f.Detail)
		}
		line("  %s", text)
	}
	if more := n - uint64(len(list)); more > 0 {
		line("  and %d more", more)
	}
}

// sanitize quotes what would steer a terminal.
func sanitize(s string) string {
	if strings.ContainsFunc(s, hostile) || strings.ContainsAny(s, "\t\n") {
		return fmt.Sprintf("%q", s)
	}
	return s
}
