package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/walrelay/walrelay"
)

// settings gathers what the command line, the environment and the file say
// before kong gets it: kong stops at the first problem, and an operator wants
// to hear of all of them at once. What cannot be used is reported and left out.
type settings struct {
	app  *kong.Application
	verb *kong.Node // the verb that was asked for; the application if none was

	flags map[string]*kong.Flag // of the verb, by name
	known map[string]*kong.Flag // of any verb, by name: what file and environment may hold

	args     []string         // what is left for kong
	given    map[string]given // by flag name: the one that wins
	problems []string
	guessed  map[string]bool // flags that a misspelling was taken for
}

// given is one setting as it was found.
type given struct {
	value  string
	origin string // flag, environment or file
	where  string // as the operator wrote it: --window, WALRELAY_WINDOW, window (walrelay.yaml:3)
}

const (
	fromFlag        = "flag"
	fromEnvironment = "environment"
	fromFile        = "file"
	fromDefault     = "default"
)

const envPrefix = "WALRELAY_"

// gather reads all three; environ is as os.Environ gives it.
func gather(app *kong.Application, args, environ []string) *settings {
	s := &settings{
		app: app, flags: map[string]*kong.Flag{}, known: map[string]*kong.Flag{}, given: map[string]given{}, guessed: map[string]bool{},
	}
	s.collect(app.Node)
	s.verb = s.findVerb(args)
	for _, group := range s.verb.AllFlags(false) {
		for _, f := range group {
			s.flags[f.Name] = f
		}
	}
	s.scanArgs(args)
	if s.verb.Tag != nil && s.verb.Tag.Has("bare") {
		return s // it has no settings, so those of others are not its business
	}
	env := s.scanEnvironment(environ)
	file := s.configFile(env)
	if file != "" {
		s.scanFile(file, env)
	}
	for name, g := range env {
		s.take(name, g)
	}
	return s
}

// collect finds the flags of every verb that people may use. Verbs share
// names, and then mean the same.
func (s *settings) collect(n *kong.Node) {
	for _, f := range n.Flags {
		if f.Name != "help" && !f.Hidden {
			s.known[f.Name] = f
		}
	}
	for _, child := range n.Children {
		if !child.Hidden {
			s.collect(child)
		}
	}
}

// take keeps a setting of the environment or the file if its value can be used
// and nothing that wins over it is there.
func (s *settings) take(name string, g given) {
	f := s.flags[name]
	if f == nil {
		f = s.known[name] // another verb's; a wrong value is wrong all the same
	}
	if err := usable(f, g.value); err != nil {
		write := key
		if g.origin == fromEnvironment {
			write = variable
		}
		s.problem("%s: %v%s", g.where, err, s.longer(name, write))
		return
	}
	if won, ok := s.given[name]; ok && (won.origin == fromFlag || won.origin == fromEnvironment) {
		return
	}
	s.given[name] = g
}

func (s *settings) problem(format string, args ...any) {
	s.problems = append(s.problems, maskText(fmt.Sprintf(format, args...)))
}

// unknown reports a name that does not exist and the nearest one that does.
func (s *settings) unknown(what, name string, names []string, write func(string) string) {
	best := nearest(name, names)
	s.guessed[best] = true
	s.problem("%s is not known; the nearest is %s", what, write(best))
}

// longer asks whether the verb's shortest flag was meant that begins with the name of
// another verb's, such as database-url where database stands.
func (s *settings) longer(name string, write func(string) string) string {
	if s.flags[name] != nil {
		return ""
	}
	best := ""
	for _, other := range names(s.flags) {
		if strings.HasPrefix(other, name+"-") && (best == "" || len(other) < len(best)) {
			best = other
		}
	}
	if best == "" {
		return ""
	}
	return "; is " + write(best) + " meant?"
}

// Validate is kong's; everything is checked already.
func (s *settings) Validate(*kong.Application) error { return nil }

// Resolve gives kong what environment and file say.
func (s *settings) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if g, ok := s.given[flag.Name]; ok && g.origin != fromFlag {
		return g.value, nil
	}
	return nil, nil //nolint:nilnil // kong's way to say that there is none
}

// all gives every problem that can be found without a server, one line each.
// err is kong's.
func (s *settings) all(parsed *kong.Context, err error) []string {
	lines := append([]string{}, s.problems...)
	if err != nil {
		// Kong has not filled in anything, so nothing more can be checked.
		return append(lines, maskText(err.Error()))
	}
	verb, ok := reflect.TypeAssert[interface{ check() error }](parsed.Selected().Target.Addr())
	if !ok {
		return lines
	}
	return append(lines, s.explain(verb.check())...)
}

// explain makes one line of each problem that a verb found with its settings:
// named as the operator gave them, sorted, without secrets.
func (s *settings) explain(err error) []string {
	if err == nil {
		return nil
	}
	var lines []string
	for _, e := range flatten(err) {
		c, ok := errors.AsType[*walrelay.ConfigError](e)
		if !ok {
			lines = append(lines, maskText(e.Error()))
			continue
		}
		name := s.flagOf(c.Field)
		if c.Value == "" && strings.HasPrefix(c.Reason, "is not set") && s.guessed[name] {
			continue // the misspelling was reported
		}
		line := s.whereOf(name)
		if c.Value != "" {
			line += fmt.Sprintf("=%q", c.Value)
		}
		lines = append(lines, line+": "+c.Reason)
	}
	sort.Strings(lines)
	return lines
}

// where names a setting as the operator gave it.
func (s *settings) where(name string) string {
	if g, ok := s.given[name]; ok {
		return g.where
	}
	return "--" + name
}

// whereOf does so for a part of a setting too, such as routes[0].subject.
func (s *settings) whereOf(name string) string {
	base, part, ok := strings.Cut(name, "[")
	if !ok {
		return s.where(name)
	}
	word, rest, _ := strings.Cut(s.where(s.flagOf(base)), " ")
	return strings.TrimSpace(word + "[" + part + " " + rest)
}

// flagOf finds the flag of a field of walrelay.Config: database-url for
// DatabaseURL.
func (s *settings) flagOf(field string) string {
	for name := range s.flags {
		if strings.EqualFold(strings.ReplaceAll(name, "-", ""), field) {
			return name
		}
	}
	return field
}

// usable says whether a value can be read as what the flag wants.
func usable(f *kong.Flag, value string) error {
	if enum := f.EnumSlice(); f.Enum != "" {
		if slices.Contains(enum, value) {
			return nil
		}
		return fmt.Errorf("use one of %s, not %q", strings.Join(enum, ", "), value)
	}
	target := reflect.New(f.Target.Type()).Elem()
	scan := kong.ScanFromTokens(kong.Token{Value: value, Type: kong.FlagValueToken})
	if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: scan}, target); err != nil {
		if shape, ok := errors.AsType[*shapeError](err); ok {
			return shape
		}
		return fmt.Errorf("use %s, not %q", wanted(f), value)
	}
	return nil
}

// wanted says in words what a flag takes.
func wanted(f *kong.Flag) string {
	switch f.Target.Type().String() {
	case "bool":
		return "true or false"
	case "main.keeping":
		return "a duration such as 168h, or off"
	case "time.Duration":
		return "a duration such as 10s or 1m30s"
	case "int", "int64", "uint64", "uint32":
		return "a whole number"
	case "slog.Level":
		return "debug, info, warn or error"
	}
	return "another value"
}

// variable and key are a flag's names in the environment and in the file.
func variable(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func key(name string) string { return strings.ReplaceAll(name, "-", "_") }
