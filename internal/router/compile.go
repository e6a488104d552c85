package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walrelay/walrelay/envelope"
)

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) add(field, value, problem, fix string) {
	*p = append(*p, &ConfigError{Field: field, Value: value, Problem: problem, Fix: fix})
}

// maxSource is the longest name of a source in bytes: it is in every message.
const maxSource = 64

// compile checks the configuration and fills tables and streams.
func (r *Router) compile() error {
	var p problems
	if !validSource(r.cfg.Source) {
		p.add("source", r.cfg.Source, "is no name of a source", fmt.Sprintf("use 1 to %d letters, digits, dots, hyphens and underscores", maxSource))
	}
	tables := r.compileTables(&p)
	if len(r.cfg.Routes) == 0 {
		p.add("routes", "", "has no route", "add one with a stream, such as {stream: WALRELAY}")
	}
	for i := range r.cfg.Routes {
		r.compileRoute(i, tables, &p)
	}
	return errors.Join(p...)
}

func validSource(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxSource
}

func (r *Router) compileTables(p *problems) []*table {
	if len(r.cfg.Tables) == 0 {
		p.add("tables", "", "has no table", "add the outbox table, such as walrelay.outbox")
	}
	var tables []*table
	for i, t := range r.cfg.Tables {
		where := fmt.Sprintf("tables[%d]", i)
		name := t.Schema + "." + t.Name
		key := tableKey{t.Schema, t.Name}
		switch {
		case t.Schema == "" || t.Name == "":
			p.add(where, name, "lacks its schema or its name", "write both, such as walrelay.outbox")
		case strings.Contains(t.Schema, "."):
			p.add(where, name, "has a dot in its schema, which makes schema.name ambiguous", "rename the schema")
		case r.tables[key] != nil:
			p.add(where, name, "is there twice", "remove one")
		default:
			compiled := &table{Table: t, name: name, cols: t.Columns.Effective()}
			r.compileExtras(compiled, where, p)
			r.tables[key] = compiled
			tables = append(tables, compiled)
		}
	}
	return tables
}

func (r *Router) compileExtras(t *table, where string, p *problems) {
	if len(t.cols.Extra) > maxExtra {
		p.add(where+".columns.extra", fmt.Sprint(len(t.cols.Extra)), "are too many columns", fmt.Sprintf("map at most %d", maxExtra))
		return
	}
	for _, column := range slices.Sorted(maps.Keys(t.cols.Extra)) {
		header := t.cols.Extra[column]
		field := fmt.Sprintf("%s.columns.extra[%s]", where, column)
		if column == "" || header == "" && slices.Contains(placeholders, column) {
			p.add(field, column, "is no column that a template can name", "give it a header: "+strings.Join(placeholders, ", ")+" mean the mapped columns in templates")
			continue
		}
		if header != "" {
			r.checkName(field, header, p)
			if slices.ContainsFunc(t.extras, func(e extraColumn) bool { return strings.EqualFold(e.header, header) }) {
				p.add(field, header, "is the header of two columns", "give each its own")
			}
		}
		t.extras = append(t.extras, extraColumn{column: column, header: header})
	}
}

// checkName checks the name of a header that the configuration sets.
func (r *Router) checkName(field, name string, p *problems) {
	switch {
	case !validName(name):
		p.add(field, name, "is no name of a header", "use printable ASCII characters without blanks and without any of "+forbiddenInName)
	case envelope.Reserved(name), r.cfg.CloudEvents && hasPrefixFold(name, cePrefix):
		p.add(field, name, "is reserved (Nats-*, Walrelay-*, Status, Description, and ce-* with CloudEvents)", "use another name")
	}
}

func (r *Router) compileRoute(i int, tables []*table, p *problems) {
	cfg := &r.cfg.Routes[i]
	where := fmt.Sprintf("routes[%d]", i)
	rt := route{types: slices.Clone(cfg.EventTypes), skip: cfg.Skip, stream: cfg.Stream, headers: slices.Clone(cfg.Headers), streamIndex: -1}
	if slices.Contains(cfg.EventTypes, "") {
		p.add(where+".event_types", "", "is an empty event type", "remove it; no list at all means every type")
	}
	var nodes []node
	if cfg.Skip {
		rt.stream, rt.headers = "", nil
	} else {
		rt.streamIndex = r.streamIndex(where, cfg.Stream, p)
		r.checkHeaders(where, cfg.Headers, p)
		var err error
		if nodes, err = parseTemplate(subjectOf(*cfg)); err != nil {
			p.add(where+".subject", subjectOf(*cfg), err.Error(), "write it like "+DefaultSubject)
			return
		}
	}
	matched, reached, reported := false, false, false
	for _, t := range tables {
		if cfg.Table != "" && cfg.Table != t.name {
			continue
		}
		matched = true
		if !shadowed(t.routes, cfg.EventTypes) {
			reached = true
		}
		mine := rt
		if !cfg.Skip {
			pieces, err := compile(nodes, r.cfg.Source, t)
			if err != nil && !reported {
				p.add(where+".subject", subjectOf(*cfg), err.Error(), "correct the template")
				reported = true // one word about a template, not one a table
			}
			mine.subject, mine.tellsType = pieces, tells(pieces, aggregateType)
			r.checkCollisions(where, t, cfg.Headers, p)
		}
		t.routes = append(t.routes, mine)
	}
	switch {
	case len(tables) == 0:
	case !matched:
		p.add(where+".table", cfg.Table, "is none of the outbox tables", "use one of "+strings.Join(tableNames(tables), ", ")+", or leave it empty for all")
	case !reached:
		p.add(where, strings.Join(cfg.EventTypes, ", "), "is never reached: earlier routes take all its events", "move it up or remove it")
	}
}

func tableNames(tables []*table) []string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.name
	}
	return names
}

// shadowed says whether earlier routes take every event of types.
func shadowed(earlier []route, types []string) bool {
	taken := func(eventType string) bool {
		return slices.ContainsFunc(earlier, func(e route) bool { return slices.Contains(e.types, eventType) })
	}
	if slices.ContainsFunc(earlier, func(e route) bool { return len(e.types) == 0 }) {
		return true
	}
	return len(types) > 0 && !slices.ContainsFunc(types, func(s string) bool { return !taken(s) })
}

func (r *Router) streamIndex(where, stream string, p *problems) int {
	if stream == "" || strings.ContainsAny(stream, " \t\r\n.*>/\\") {
		p.add(where+".stream", stream, "is no name of a stream", `use one or more characters without blanks and without any of . * > / \`)
		return -1
	}
	if i := slices.Index(r.streams, stream); i >= 0 {
		return i
	}
	r.streams = append(r.streams, stream)
	return len(r.streams) - 1
}

func (r *Router) checkHeaders(where string, headers []envelope.Header, p *problems) {
	for i, h := range headers {
		field := fmt.Sprintf("%s.headers[%s]", where, h.Name)
		r.checkName(field, h.Name, p)
		if !envelope.Verbatim(h.Value) {
			p.add(field, "", "has a control character or a blank at an end, which would be changed on the way", "encode the value")
		}
		if r.cfg.CloudEvents && strings.EqualFold(h.Name, contentType) && hasPrefixFold(h.Value, structured) {
			p.add(field, "", "says that the body is a CloudEvent in structured mode, which it is not", "write the payload's own type")
		}
		if slices.ContainsFunc(headers[:i], func(e envelope.Header) bool { return strings.EqualFold(e.Name, h.Name) }) {
			p.add(field, h.Name, "is there twice (case does not matter)", "remove one")
		}
	}
}

func (r *Router) checkCollisions(where string, t *table, headers []envelope.Header, p *problems) {
	for _, h := range headers {
		for _, e := range t.extras {
			if strings.EqualFold(e.header, h.Name) {
				p.add(fmt.Sprintf("%s.headers[%s]", where, h.Name), h.Name,
					fmt.Sprintf("is also the header of column %q of table %s", e.column, t.name), "remove one")
			}
		}
	}
}
