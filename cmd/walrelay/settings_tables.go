package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/migrations"
)

// outboxes are the flags of every verb that needs to know the outbox tables.
type outboxes struct {
	Table   string    `help:"Outbox table (default: outbox in --schema); a part with a dot in it stands in double quotes." placeholder:"SCHEMA.NAME"`
	Columns string    `help:"Names of the columns of --table: walrelay's own or Debezium's." enum:"own,debezium" default:"own"`
	Tables  tableList `help:"Several outbox tables, or one with other columns." placeholder:"YAML" shape:"list"`
}

// tables are the tables that the flags name; none for walrelay's own.
func (o *outboxes) tables(schema string) []walrelay.Table {
	if len(o.Tables.list) > 0 {
		return o.Tables.list
	}
	if o.Table == "" && o.Columns != "debezium" {
		return nil
	}
	t := walrelay.Table{Schema: schema, Name: "outbox"}
	if o.Table != "" {
		t.Schema, t.Name, _ = tableName(o.Table)
	}
	if o.Columns == "debezium" {
		t.Columns = walrelay.DebeziumColumns()
	}
	return []walrelay.Table{t}
}

// forMigrations are the same for the publication.
func (o *outboxes) forMigrations(schema string) []migrations.Table {
	var list []migrations.Table
	for _, t := range o.tables(schema) {
		list = append(list, migrations.Table{Schema: t.Schema, Name: t.Name})
	}
	return list
}

func (o *outboxes) checkTables() error {
	var problems []error
	if o.Table != "" {
		if _, _, err := tableName(o.Table); err != nil {
			problems = append(problems, &walrelay.ConfigError{Field: "Table", Value: o.Table, Reason: err.Error()})
		}
	}
	if len(o.Tables.list) > 0 && (o.Table != "" || o.Columns == "debezium") {
		problems = append(problems, &walrelay.ConfigError{Field: "Tables", Reason: "takes the place of --table and --columns; use one or the other"})
	}
	return errors.Join(problems...)
}

// tableName reads schema.name.
func tableName(s string) (schema, name string, err error) {
	t, err := migrations.ParseTable(s)
	return t.Schema, t.Name, err
}

// A tableList is the value of --tables.
type tableList struct{ list []walrelay.Table }

// UnmarshalText reads YAML or JSON.
func (l *tableList) UnmarshalText(text []byte) error {
	l.list = nil // a repeated flag beats the one before
	return readList(text, func(fields *shape) error {
		var t walrelay.Table
		var name, preset string
		fields.text("name", &name)
		fields.text("preset", &preset)
		cols := &t.Columns
		c := map[string]*string{
			"id": &cols.ID, "aggregate_type": &cols.AggregateType, "aggregate_id": &cols.AggregateID, "event_type": &cols.EventType,
			"payload": &cols.Payload, "headers": &cols.Headers, "created_at": &cols.CreatedAt, "xid": &cols.Xid, "seq": &cols.Seq,
		}
		given := map[string]string{}
		fields.texts("columns", given)
		fields.texts("extra", func() map[string]string { cols.Extra = map[string]string{}; return cols.Extra }())
		if err := fields.done(); err != nil {
			return err
		}
		switch preset {
		case "", "own":
		case "debezium":
			extra := cols.Extra
			*cols = walrelay.DebeziumColumns()
			cols.Extra = extra
		default:
			return fmt.Errorf("preset %q: use own or debezium", preset)
		}
		for key, column := range given {
			to, ok := c[key]
			if !ok {
				return fmt.Errorf("columns.%s is not known; the nearest is columns.%s", key, nearest(key, keys(c)))
			}
			*to = column
		}
		if len(cols.Extra) == 0 {
			cols.Extra = nil
		} else if len(given) == 0 && preset != "debezium" {
			own := ownColumns()
			own.Extra = cols.Extra
			*cols = own
		}
		var err error
		if t.Schema, t.Name, err = tableName(name); err != nil {
			return fmt.Errorf("name %q: %w", name, err)
		}
		l.list = append(l.list, t)
		return nil
	})
}

// ownColumns are walrelay's own, written out: further columns beside them make
// the value one that is not zero.
func ownColumns() walrelay.Columns {
	return walrelay.Columns{
		ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload",
		Headers: "headers", CreatedAt: "created_at", Xid: "xid", Seq: "seq",
	}
}

// A routeList is the value of --routes.
type routeList struct{ list []walrelay.Route }

// UnmarshalText reads YAML or JSON.
func (l *routeList) UnmarshalText(text []byte) error {
	l.list = nil // a repeated flag beats the one before
	return readList(text, func(fields *shape) error {
		rt := walrelay.Route{Headers: map[string]string{}}
		var name string
		fields.text("table", &name)
		fields.list("event_types", &rt.EventTypes)
		fields.text("stream", &rt.Stream)
		fields.text("subject", &rt.Subject)
		fields.texts("headers", rt.Headers)
		fields.truth("skip", &rt.Skip)
		if err := fields.done(); err != nil {
			return err
		}
		if len(rt.Headers) == 0 {
			rt.Headers = nil
		}
		if name != "" {
			schema, table, err := tableName(name)
			if err != nil {
				return fmt.Errorf("table %q: %w", name, err)
			}
			rt.Table = schema + "." + table
		}
		l.list = append(l.list, rt)
		return nil
	})
}

// A streamList is the value of --streams.
type streamList struct{ list []walrelay.Stream }

// UnmarshalText reads YAML or JSON.
func (l *streamList) UnmarshalText(text []byte) error {
	l.list = nil // a repeated flag beats the one before
	return readList(text, func(fields *shape) error {
		var st walrelay.Stream
		fields.text("name", &st.Name)
		fields.truth("shared", &st.Shared)
		fields.number("window", &st.Window)
		fields.number("in_flight_bytes", &st.InFlightBytes)
		if err := fields.done(); err != nil {
			return err
		}
		l.list = append(l.list, st)
		return nil
	})
}

// jsonOf writes a node as JSON in which every plain value is a string: YAML's
// own reading of numbers and dates would change it.
func jsonOf(v *yaml.Node) ([]byte, error) {
	switch v.Kind {
	case yaml.AliasNode:
		return jsonOf(v.Alias)
	case yaml.ScalarNode:
		if v.Tag == "!!null" {
			return []byte(`""`), nil
		}
		return plainJSON(v.Value)
	case yaml.SequenceNode, yaml.MappingNode:
	case yaml.DocumentNode:
		return nil, errors.New("use plain values, lists and mappings")
	}
	isMap := v.Kind == yaml.MappingNode
	brackets := "[]"
	if isMap {
		brackets = "{}"
	}
	out := []byte{brackets[0]}
	for i, item := range v.Content {
		switch {
		case i == 0:
		case isMap && i%2 == 1:
			out = append(out, ':')
		default:
			out = append(out, ',')
		}
		b, err := jsonOf(item)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return append(out, brackets[1]), nil
}

func plainJSON(s string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return []byte(strings.TrimSuffix(b.String(), "\n")), err
}
