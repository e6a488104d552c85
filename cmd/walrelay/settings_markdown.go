package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

//go:embed configuration.md.tmpl
var configurationTemplate string

// A section of docs/configuration.md is the flags of one verb.
type section struct {
	Verb string
	Help string
	Also []string // flags that are described under run
	Rows []row
}

type row struct{ Flag, Variable, Key, Type, Default, Effect string }

// writeMarkdown writes docs/configuration.md.
func writeMarkdown(w io.Writer, app *kong.Application) error {
	t, err := template.New("configuration.md").Parse(configurationTemplate)
	if err != nil {
		return fmt.Errorf("read the template of docs/configuration.md: %w", err)
	}
	run := verb(app, "run")
	described := map[string]bool{}
	data := struct {
		General []row
		Run     []row
		Verbs   []section
	}{General: rows(app.Flags), Run: rows(run.Flags)}
	for _, f := range run.Flags {
		described[f.Name+f.Help] = true
	}
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		s := section{Verb: n.FullPath(), Help: n.Help}
		for _, f := range n.Flags {
			switch {
			case f.Hidden:
			case described[f.Name+f.Help]:
				s.Also = append(s.Also, "`--"+f.Name+"`")
			default:
				s.Rows = append(s.Rows, rows([]*kong.Flag{f})...)
			}
		}
		if len(s.Rows)+len(s.Also) > 0 && n != run {
			data.Verbs = append(data.Verbs, s)
		}
		for _, child := range n.Children {
			if !child.Hidden {
				visit(child)
			}
		}
	}
	for _, n := range app.Children {
		if !n.Hidden {
			visit(n)
		}
	}
	return t.Execute(w, data)
}

func rows(flags []*kong.Flag) []row {
	var out []row
	for _, f := range flags {
		if f.Name == "help" || f.Hidden {
			continue
		}
		def := "`" + f.Default + "`"
		if f.Default == "" {
			def = ""
		}
		out = append(out, row{
			Flag: "`--" + f.Name + "`", Variable: "`" + variable(f.Name) + "`", Key: "`" + key(f.Name) + "`",
			Type: kind(f), Default: def, Effect: strings.ReplaceAll(f.Help, "|", "\\|"),
		})
	}
	return out
}

// kind is the type or unit of a flag in a word or two.
func kind(f *kong.Flag) string {
	if f.Enum != "" {
		return strings.Join(f.EnumSlice(), ", ")
	}
	switch f.Target.Type().String() {
	case "bool":
		return "true or false"
	case "time.Duration":
		return "duration (`10s`)"
	case "main.keeping":
		return "duration or off"
	case "slog.Level":
		return "level"
	case "string":
		return strings.ToLower(firstOf(f.PlaceHolder, "text"))
	}
	if f.Tag.Get("shape") == "list" {
		return "list"
	}
	if strings.HasSuffix(f.Name, "-bytes") {
		return "bytes"
	}
	return "number"
}
