package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/walrelay/walrelay/internal/admin"
)

// watch shows the status until it is stopped. On a terminal each one takes the
// place of the one before, without a flicker; elsewhere they follow each other.
func (c *statusCmd) watch(e *env) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		var text bytes.Buffer
		err := c.glance(e, &text)
		if e.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintf(&text, "%s  %s\n", time.Now().Format(time.TimeOnly), maskText(err.Error()))
		}
		if !c.JSON {
			fmt.Fprintln(&text)
		}
		out := text.Bytes()
		if !c.JSON && isTerminal(e.stdout) {
			out = repaint(out)
		}
		if _, err := e.stdout.Write(out); err != nil {
			return fmt.Errorf("write the status: %w", err)
		}
		select {
		case <-e.ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// repaint writes lines over those of before: each is cleared to its end, and
// what stood below as well.
func repaint(text []byte) []byte {
	lines := strings.ReplaceAll(string(text), "\n", "\x1b[K\n")
	return []byte("\x1b[H" + lines + "\x1b[J")
}

// glance writes the status once.
func (c *statusCmd) glance(e *env, out io.Writer) error {
	answer, err := c.ask(e.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(out).Encode(answer)
	}
	var past []admin.Point
	if answer.Relay != nil {
		if past, err = c.askHistory(e.ctx); err != nil {
			return errors.Join(answer.print(out, time.Now(), nil), fmt.Errorf("ask for the last hour: %w", err))
		}
	}
	return answer.print(out, time.Now(), past)
}

// way writes the stations of an event.
func (p *page) way(parts []admin.Part) {
	var stations []string
	for i := range parts {
		if parts[i].Name != "service" { // its state is not known here
			stations = append(stations, fmt.Sprintf("%s: %s%s", parts[i].Title, warns(parts[i].Level), parts[i].Word))
		}
	}
	if len(stations) > 0 {
		p.line("way", "%s", strings.Join(stations, "  →  "))
	}
}

func warns(l admin.Level) string {
	if l == admin.LevelWarn || l == admin.LevelBad {
		return "! "
	}
	return ""
}

// advice writes what wants attention, each with the command for it.
func (p *page) advice(all []admin.Advice) {
	for i := range all {
		a := &all[i]
		name := "to do"
		if i > 0 {
			name = ""
		}
		p.line(name, "%s", a.Title)
		if a.Command != "" {
			p.line("", "  $ %s", a.Command)
		}
		if a.Runbook != "" {
			p.line("", "  docs/runbook.md#%s", a.Runbook)
		}
	}
}

// hour writes rate and latency of the last hour, a column a minute.
func (p *page) hour(past []admin.Point, now time.Time) {
	if len(past) == 0 {
		return
	}
	rate := bars(past, now, func(q *admin.Point) *float64 { return &q.Rate })
	late := bars(past, now, func(q *admin.Point) *float64 { return q.P99 })
	p.line("rate", "%s  most %.0f/s, now %.1f/s", rate.text, rate.most, past[len(past)-1].Rate)
	if late.most > 0 {
		p.line("latency", "%s  99 of 100, most %s", late.text, admin.Span(late.most))
	}
}

// A barLine is a chart of one line.
type barLine struct {
	text string
	most float64
}

const minutes = 60

// bars draws the highest value of each minute; a point stands for minutes of
// which nothing is known.
func bars(past []admin.Point, now time.Time, value func(*admin.Point) *float64) barLine {
	var values [minutes]float64
	var known [minutes]bool
	line := barLine{}
	for i := range past {
		column := minutes - 1 - int(now.Sub(time.UnixMilli(past[i].At)).Minutes())
		v := value(&past[i])
		if column < 0 || column >= minutes || v == nil {
			continue
		}
		values[column], known[column] = max(values[column], *v), true
		line.most = max(line.most, *v)
	}
	steps := []rune("▁▂▃▄▅▆▇█")
	var text strings.Builder
	for i, v := range values {
		switch {
		case !known[i]:
			text.WriteByte('.')
		case line.most == 0:
			text.WriteRune(steps[0])
		default:
			text.WriteRune(steps[int(v/line.most*float64(len(steps)-1))])
		}
	}
	line.text = text.String()
	return line
}
