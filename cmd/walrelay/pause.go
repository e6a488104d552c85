package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

type pauseCmd struct {
	database `embed:""`
	JSON     bool `name:"json" help:"One JSON object."`
}

type resumeCmd struct {
	database `embed:""`
	JSON     bool `name:"json" help:"One JSON object."`
}

func (c *pauseCmd) check() error  { return c.checkPause() }
func (c *resumeCmd) check() error { return c.checkPause() }

// Run asks the relay to stop delivering.
func (c *pauseCmd) Run(e *env) error { return c.setPaused(e, true, c.JSON) }

// Run lets it go on.
func (c *resumeCmd) Run(e *env) error { return c.setPaused(e, false, c.JSON) }

func (d *database) checkPause() error {
	if _, err := d.connection(""); err != nil {
		return err
	}
	return d.checkDatabase()
}

func (d *database) setPaused(e *env, pause, asJSON bool) error {
	conn, err := d.open(e.ctx, "walrelay pause")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	p, changed, err := witness.SetPaused(e.ctx, conn, d.Schema, d.Source, pause, whoAmI())
	if err != nil {
		return err
	}
	info, err := slot.Inspect(e.ctx, conn, d.slotName())
	if err != nil {
		return err
	}
	if asJSON {
		report := struct {
			Paused        bool      `json:"paused"`
			Changed       bool      `json:"changed"`
			At            time.Time `json:"at,omitzero"` // when the pause began
			By            string    `json:"by,omitempty"`
			RetainedBytes int64     `json:"retained_bytes"`
		}{pause, changed, p.At, p.By, info.RetainedBytes}
		return json.NewEncoder(e.stdout).Encode(report)
	}
	kept := ""
	if info.Exists {
		kept = ", " + admin.Size(info.RetainedBytes) + " now"
	}
	switch {
	case pause && changed:
		fmt.Fprintf(e.stdout, "paused: the relay of source %q delivers nothing from within two seconds on, also after a restart, until walrelay resume. The slot keeps the write-ahead log%s.\n", d.Source, kept)
	case pause:
		fmt.Fprintf(e.stdout, "it is paused already, by %s since %s; the slot keeps the write-ahead log%s.\n", oneLine(p.By), stamp(p.At), kept)
	case changed:
		fmt.Fprintf(e.stdout, "resumed: the relay goes on within two seconds; it was paused by %s at %s.\n", oneLine(p.By), stamp(p.At))
	default:
		fmt.Fprintln(e.stdout, "it is not paused; nothing was changed.")
	}
	return nil
}
