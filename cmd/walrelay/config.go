package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

type configCmd struct {
	relaying `embed:""`

	JSON     bool `name:"json" help:"One JSON array."`
	Markdown bool `hidden:"" help:"Write docs/configuration.md."`
}

// A setting is one line of the effective settings.
type setting struct {
	Setting string `json:"setting"` // the flag's name
	Value   string `json:"value"`   // secrets masked
	Origin  string `json:"origin"`  // flag, environment, file or default
	Where   string `json:"where,omitempty"`
}

func (c *configCmd) check() error {
	if c.Markdown {
		return nil
	}
	return c.relaying.check()
}

// Run shows the settings that run would have.
func (c *configCmd) Run(e *env) error {
	if c.Markdown {
		return writeMarkdown(e.stdout, e.settings.app)
	}
	all := c.effective(e.settings)
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(all)
	}
	return printSettings(e.stdout, all)
}

func (c *configCmd) effective(s *settings) []setting {
	run := verb(s.app, "run")
	derived := c.derived()
	all := make([]setting, 0, len(run.Flags))
	for _, f := range run.Flags {
		value := f.Default
		one := setting{Setting: f.Name, Origin: fromDefault}
		if d, ok := derived[f.Name]; ok && value == "" {
			value = d
		}
		if g, ok := s.given[f.Name]; ok {
			value, one.Origin, one.Where = g.value, g.origin, g.where
		}
		one.Value = maskSetting(f, value)
		all = append(all, one)
	}
	return all
}

// maskSetting hides what the flag's tag says is secret in its value.
func maskSetting(f *kong.Flag, value string) string {
	switch f.Tag.Get("secret") {
	case "dsn":
		return maskDSN(value)
	case "urls":
		return maskURLs(value, true)
	}
	return value
}

// verb finds a verb that exists.
func verb(app *kong.Application, name string) *kong.Node {
	i := slices.IndexFunc(app.Children, func(n *kong.Node) bool { return n.Name == name })
	return app.Children[i]
}

func printSettings(out io.Writer, all []setting) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	for _, s := range all {
		value := s.Value
		if value == "" {
			value = "-"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", s.Setting, value, firstOf(s.Where, s.Origin))
	}
	return w.Flush()
}
