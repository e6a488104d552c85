package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walrelay/walrelay/internal/decode"
)

// OIDs of the types that a message depends on: the same on every server. A
// domain has an OID of its own and counts as a type that is not listed.
const (
	oidBytea = 17
	oidJSON  = 114
	oidUUID  = 2950
	oidJSONB = 3802
)

// A ColumnError says that a mapped column is not in the table. It is no fault
// of one row: delivery stops, since the rows cannot be told apart from events
// without that column, and goes on when table or configuration is corrected.
type ColumnError struct {
	// Table is schema.name.
	Table string
	// Column is the missing column and Field the setting that maps it.
	Column, Field string
	// Have are the columns that the table has.
	Have []string
}

// Error names the column, the nearest one that exists, and the fix.
func (e *ColumnError) Error() string {
	return fmt.Sprintf("table %s has no column %q, which columns.%s maps (nearest: %q, it has %s); "+
		"correct columns.%s of that table in the configuration, or give the column back its name or its place in the publication's column list",
		e.Table, e.Column, e.Field, nearest(e.Column, e.Have), strings.Join(e.Have, ", "), e.Field)
}

// A table is an outbox table with its routes, compiled.
type table struct {
	Table
	name   string // schema.name
	cols   Columns
	extras []extraColumn
	routes []route
}

type extraColumn struct{ column, header string }

// maxExtra bounds the further columns of a table: a field counts them.
const maxExtra = 64

func (t *table) extra(column string) int {
	return slices.IndexFunc(t.extras, func(e extraColumn) bool { return e.column == column })
}

func (t *table) extraColumns() []string {
	names := make([]string, len(t.extras))
	for i, e := range t.extras {
		names[i] = e.column
	}
	return names
}

// A plan says where a relation has the columns of its table.
type plan struct {
	generation uint64
	table      *table // nil: no outbox
	columns    int

	id, aggregateType, aggregateID, eventType, payload int
	headers, createdAt                                 int // -1: none
	extras                                             []int

	uuid, bytea bool
	contentType string
}

// maxPlans bounds the relations that are remembered. Each change of a table
// makes a new one; forgetting them costs a look at the columns.
const maxPlans = 256

// planFor gives the plan of rel, made anew when the relation is.
func (r *Router) planFor(rel *decode.Relation) (*plan, error) {
	if rel == r.lastRelation && r.lastPlan.generation == rel.Generation {
		return r.lastPlan, nil
	}
	p := r.plans[rel]
	if p == nil || p.generation != rel.Generation {
		var err error
		if p, err = r.makePlan(rel); err != nil {
			return nil, err
		}
		if len(r.plans) >= maxPlans {
			clear(r.plans)
		}
		r.plans[rel] = p
	}
	r.lastRelation, r.lastPlan = rel, p
	return p, nil
}

// makePlan finds the columns by name. Columns that nothing maps are not looked
// at, so that they may come, go and move.
func (r *Router) makePlan(rel *decode.Relation) (*plan, error) {
	p := &plan{generation: rel.Generation, columns: len(rel.Columns), table: r.tables[tableKey{rel.Schema, rel.Name}]}
	if p.table == nil {
		return p, nil
	}
	c := &p.table.cols
	for _, m := range []struct {
		field, column string
		at            *int
	}{
		{"id", c.ID, &p.id},
		{"aggregate_type", c.AggregateType, &p.aggregateType},
		{"aggregate_id", c.AggregateID, &p.aggregateID},
		{"event_type", c.EventType, &p.eventType},
		{"payload", c.Payload, &p.payload},
		{"headers", c.Headers, &p.headers},
		{"created_at", c.CreatedAt, &p.createdAt},
	} {
		*m.at = -1
		if m.column == "" {
			continue
		}
		if *m.at = rel.Column(m.column); *m.at < 0 {
			return nil, missing(p.table, rel, m.column, m.field)
		}
	}
	for _, e := range p.table.extras {
		at := rel.Column(e.column)
		if at < 0 {
			return nil, missing(p.table, rel, e.column, "extra")
		}
		p.extras = append(p.extras, at)
	}
	p.uuid = rel.Columns[p.id].TypeOID == oidUUID
	switch rel.Columns[p.payload].TypeOID {
	case oidBytea:
		p.bytea, p.contentType = true, "application/octet-stream"
	case oidJSON, oidJSONB:
		p.contentType = "application/json"
	}
	return p, nil
}

// CheckColumns says which column of an outbox table is not among those that
// inserts bring along, as the first row would.
func (r *Router) CheckColumns(schema, name string, have []string) error {
	t := r.tables[tableKey{schema, name}]
	if t == nil {
		return nil
	}
	rel := &decode.Relation{Schema: schema, Name: name, Columns: make([]decode.Column, len(have))}
	for i, column := range have {
		rel.Columns[i].Name = column
	}
	_, err := r.makePlan(rel)
	return err
}

func missing(t *table, rel *decode.Relation, column, field string) error {
	have := make([]string, len(rel.Columns))
	for i := range rel.Columns {
		have[i] = rel.Columns[i].Name
	}
	return &ColumnError{Table: t.name, Column: column, Field: field, Have: have}
}

// values are the columns of one row that templates and headers use, as text.
// Null is the empty string here.
type values struct {
	id, aggregateType, aggregateID, eventType, createdAt string

	plan  *plan
	tuple decode.Tuple
}

func (v *values) of(f field) string {
	switch f {
	case aggregateType:
		return v.aggregateType
	case aggregateID:
		return v.aggregateID
	case eventType:
		return v.eventType
	case rowID:
		return v.id
	default:
		return text(v.tuple[v.plan.extras[f-extra]].Data)
	}
}

// null says whether the column at index i is null. An index of -1 is no column.
func (v *values) null(i int) bool { return i < 0 || v.tuple[i].Kind == decode.Null }

// read reads the row. It gives the index of the first mapped column whose
// value is not text or null, or -1.
func (v *values) read(p *plan, tuple decode.Tuple) int {
	v.plan, v.tuple = p, tuple
	bad := -1
	get := func(i int) string {
		if i < 0 {
			return ""
		}
		switch tuple[i].Kind {
		case decode.Text:
			return text(tuple[i].Data)
		case decode.Null:
		case decode.Unchanged, decode.Binary:
			if bad < 0 {
				bad = i
			}
		default:
			if bad < 0 {
				bad = i
			}
		}
		return ""
	}
	v.id = get(p.id)
	v.aggregateType = get(p.aggregateType)
	v.aggregateID = get(p.aggregateID)
	v.eventType = get(p.eventType)
	v.createdAt = get(p.createdAt)
	get(p.headers)
	get(p.payload)
	for _, i := range p.extras {
		get(i)
	}
	return bad
}
