package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// An arg is one element of the command line, a flag with its value if it has
// one.
type arg struct {
	words    []string // as they were
	name     string   // of a long flag, without the dashes
	value    string
	hasValue bool
	literal  bool // behind a bare --
}

// split takes the command line apart. takesValue says which flags eat the next
// word.
func split(args []string, takesValue func(name string) bool) []arg {
	var out []arg
	literal := false
	for i := 0; i < len(args); i++ {
		word := args[i]
		switch {
		case literal || word == "--":
			out = append(out, arg{words: []string{word}, literal: true})
			literal = true
		case !strings.HasPrefix(word, "--"):
			out = append(out, arg{words: []string{word}})
		default:
			a := arg{words: []string{word}}
			a.name, a.value, a.hasValue = strings.Cut(word[2:], "=")
			if !a.hasValue && takesValue(a.name) && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
				i++
				a.words, a.value, a.hasValue = append(a.words, args[i]), args[i], true
			}
			out = append(out, a)
		}
	}
	return out
}

// takesValue says whether a flag eats the next word. One that does not exist is
// taken for its nearest.
func (s *settings) takesValue(name string) bool {
	f := s.flags[name]
	if f == nil {
		f = s.known[name]
	}
	if f == nil {
		f = s.known[nearest(name, slices.Collect(maps.Keys(s.known)))]
	}
	return f != nil && !f.IsBool()
}

func (s *settings) findVerb(args []string) *kong.Node {
	node := s.app.Node
	for _, a := range split(args, s.takesValue) {
		if a.name != "" || a.literal {
			continue
		}
		for _, child := range node.Children {
			if child.Type == kong.CommandNode && child.Name == a.words[0] {
				node = child
				break
			}
		}
	}
	return node
}

// scanArgs checks the long flags and leaves the rest to kong.
func (s *settings) scanArgs(args []string) {
	for _, a := range split(args, s.takesValue) {
		name := strings.TrimPrefix(a.name, "no-")
		f := s.flags[a.name]
		if f == nil && s.flags[name] != nil && s.flags[name].Tag.Negatable != "" {
			f = s.flags[name]
		}
		switch {
		case a.name == "":
			s.args = append(s.args, a.words...)
		case f == nil && s.known[a.name] != nil:
			s.problem("--%s is not a flag of %s; walrelay %s --help lists those that are%s", a.name, s.verb.FullPath(),
				strings.TrimPrefix(s.verb.FullPath(), "walrelay "), s.longer(a.name, dashed))
		case f == nil:
			s.unknown("--"+a.name, a.name, names(s.flags), dashed)
		case a.hasValue && usable(f, a.value) != nil:
			s.problem("--%s: %v", a.name, usable(f, a.value))
			s.given[f.Name] = given{origin: fromFlag, where: "--" + f.Name} // it would have won
		default:
			s.given[f.Name] = given{value: a.value, origin: fromFlag, where: "--" + f.Name}
			s.args = append(s.args, a.words...)
		}
	}
}

func dashed(name string) string { return "--" + name }

func names(flags map[string]*kong.Flag) []string {
	return slices.Sorted(maps.Keys(flags))
}

// scanEnvironment finds our variables. An empty one counts as not set: a
// compose file passes those on.
func (s *settings) scanEnvironment(environ []string) map[string]given {
	found := map[string]given{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || foreign(name) {
			continue
		}
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-"))
		switch {
		case s.known[flag] == nil || name != variable(flag):
			s.unknown(name, flag, names(s.known), variable)
		case value != "":
			found[flag] = given{value: value, origin: fromEnvironment, where: name}
		}
	}
	return found
}

// foreign are variables of the test environment, which the demo uses as well.
func foreign(name string) bool {
	return strings.HasPrefix(name, "WALRELAY_TEST") || name == "WALRELAY_PG_CACHE" || name == "WALRELAY_SEED"
}
