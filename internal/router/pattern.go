package router

import (
	"slices"
	"strings"

	"github.com/walrelay/walrelay/envelope"
)

// A Coverage says what filters of subjects mean for all subjects that a pattern
// can make.
type Coverage uint8

const (
	// CoversNone says that no subject of the pattern matches a filter.
	CoversNone Coverage = iota
	// CoversSome says that it depends on the row.
	CoversSome
	// CoversAll says that every subject of the pattern matches a filter.
	CoversAll
)

// A Pattern is what is known beforehand of the subjects of a route.
type Pattern struct {
	// Route is the number of the route in the configuration, Stream its
	// stream, Template its subject as it is written.
	Route            int
	Stream, Template string
	parts            []part
}

// A part of a pattern is one token that is known, one that is not, or one and
// more that are not.
type part struct {
	kind  partKind
	token string
}

type partKind uint8

const (
	known   partKind = iota // token
	anyOne                  // one token
	anyMany                 // one token or more
	anyRest                 // none or more; only while matching
)

// Patterns gives the subjects that the routes can make: one for each route,
// table and event type that the route names.
func (r *Router) Patterns() []Pattern {
	var list []Pattern
	for i := range r.cfg.Routes {
		cfg := &r.cfg.Routes[i]
		if cfg.Skip {
			continue
		}
		nodes, err := parseTemplate(subjectOf(*cfg))
		if err != nil {
			continue // New has refused it
		}
		for j := range r.cfg.Tables {
			t := r.tables[tableKey{r.cfg.Tables[j].Schema, r.cfg.Tables[j].Name}]
			if t == nil || cfg.Table != "" && cfg.Table != t.name {
				continue
			}
			pieces, err := compile(nodes, r.cfg.Source, t)
			if err != nil {
				continue
			}
			types := cfg.EventTypes
			if len(types) == 0 {
				types = []string{""}
			}
			for _, named := range types {
				list = append(list, Pattern{Route: i, Stream: cfg.Stream, Template: subjectOf(*cfg), parts: parts(pieces, named)})
			}
		}
	}
	return list
}

// Filter writes the pattern as the narrowest filter that takes all of it.
func (p Pattern) Filter() string {
	var out []string
	for _, part := range p.parts {
		switch part.kind {
		case known:
			out = append(out, part.token)
		case anyOne:
			out = append(out, "*")
		case anyMany, anyRest:
			return strings.Join(append(out, ">"), ".")
		}
	}
	return strings.Join(out, ".")
}

// Covered says how much of the pattern the filters take.
func (p Pattern) Covered(filters []string) Coverage {
	some := false
	for _, f := range filters {
		tokens := strings.Split(f, ".")
		if all(tokens, p.parts) {
			return CoversAll
		}
		some = some || overlap(tokens, p.parts)
	}
	if some {
		return CoversSome
	}
	return CoversNone
}

// parts cuts pieces at the dots. A value may bring dots of its own, unless it
// is written as one token. named is the event type where it is known, else empty.
func parts(pieces []piece, named string) []part {
	list := []part{{}}
	add := func(text string) {
		for i, token := range strings.Split(text, ".") {
			if i > 0 {
				list = append(list, part{})
			}
			last := &list[len(list)-1]
			last.token += token
		}
	}
	for i := range pieces {
		p := &pieces[i]
		kind := anyOne
		switch {
		case p.form == literal:
			add(p.lit)
			continue
		case p.from == eventType && named != "" && p.form == tokens:
			add(envelope.Tokens(named))
			continue
		case p.from == eventType && named != "" && p.form == token:
			add(envelope.Token(named))
			continue
		case p.form == tokens || p.form == raw:
			kind = anyMany
		}
		last := &list[len(list)-1]
		last.kind = max(last.kind, kind)
	}
	return slices.Clip(list)
}

// all says whether every subject of parts matches the filter.
func all(filter []string, parts []part) bool {
	if len(parts) == 0 || len(filter) == 0 {
		return len(parts) == len(filter)
	}
	if parts[0].kind == anyRest {
		return all(filter, parts[1:]) && all(filter, more(parts))
	}
	switch {
	case filter[0] == ">":
		return true
	case filter[0] != "*" && (parts[0].kind != known || parts[0].token != filter[0]):
		return false
	case parts[0].kind == anyMany:
		return all(filter[1:], rest(parts))
	}
	return all(filter[1:], parts[1:])
}

// overlap says whether some subject of parts matches the filter.
func overlap(filter []string, parts []part) bool {
	switch {
	case len(parts) == 0:
		return len(filter) == 0
	case parts[0].kind == anyRest:
		return overlap(filter, parts[1:]) || len(filter) > 0 && overlap(filter, more(parts))
	case len(filter) == 0:
		return false
	case filter[0] == ">":
		return true
	case parts[0].kind == known && filter[0] != "*" && filter[0] != parts[0].token:
		return false
	case parts[0].kind == anyMany:
		return overlap(filter[1:], rest(parts))
	}
	return overlap(filter[1:], parts[1:])
}

// more takes none-or-more for one-or-more, and rest the other way round behind
// its first token.
func more(parts []part) []part { return append([]part{{kind: anyMany}}, parts[1:]...) }

func rest(parts []part) []part { return append([]part{{kind: anyRest}}, parts[1:]...) }
