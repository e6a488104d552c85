package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

//go:embed outbox/*.sql partitioned/*.sql consumer/*.sql
var files embed.FS

// A set is one side's files and the table that records which were run.
type set struct {
	folder  string
	version string // name of the version table
	inParts bool   // the outbox is made as a partitioned table
}

var (
	outboxSet   = set{folder: "outbox", version: "migration"}
	partsSet    = set{folder: "partitioned", version: "partition_migration"} // beside the outbox side's
	consumerSet = set{folder: "consumer", version: "consumer_migration"}
)

// partitioned gives the set as it makes a partitioned outbox. The key leads with
// the time, so that what is written goes to the right end of its index.
func (s set) partitioned() set {
	s.inParts = true
	return s
}

func (s set) outbox() *strings.Replacer {
	key, by := "id", ""
	if s.inParts {
		key, by = "created_at, id", " PARTITION BY RANGE (created_at)"
	}
	return strings.NewReplacer("{outbox_key}", key, "{outbox_partition_by}", by)
}

// A file is one version of a set, with the schema's name filled in.
type file struct {
	version int64
	name    string
	sql     string
}

func (s set) files(schema string) ([]file, error) {
	entries, err := fs.ReadDir(files, s.folder)
	if err != nil {
		return nil, fmt.Errorf("read embedded migrations of the %s side: %w", s.folder, err)
	}
	out := make([]file, 0, len(entries))
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("embedded migration %s: %w", e.Name(), err)
		}
		text, err := fs.ReadFile(files, path.Join(s.folder, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read embedded migration %s: %w", e.Name(), err)
		}
		out = append(out, file{version: version, name: e.Name(), sql: fill(s.outbox().Replace(string(text)), schema)})
	}
	return out, nil
}

// fill puts the schema's name into a statement, as an identifier and as an
// identifier within a string literal.
func fill(text, schema string) string {
	name := quote(schema)
	return strings.NewReplacer(
		"{schema}", name,
		"{schema_in_literal}", strings.ReplaceAll(name, "'", "''"),
	).Replace(text)
}

// versionTable creates the table that records a set's versions, with the
// version 0 that goose wants to find.
func (s set) versionTable(schema string) string {
	return fill(`CREATE TABLE IF NOT EXISTS {schema}.`+s.version+` (
    version    bigint      NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT `+s.version+`_pkey PRIMARY KEY (version)
);
`+s.record(0), schema)
}

func (s set) record(version int64) string {
	return "INSERT INTO {schema}." + s.version + " (version) VALUES (" + strconv.FormatInt(version, 10) + ") ON CONFLICT DO NOTHING;\n"
}

// An object is one thing that a set's files create.
type object struct {
	kind string // table, index, function or trigger
	name string // without its schema
}

var (
	creates = regexp.MustCompile(`CREATE (?:OR REPLACE |UNIQUE )?(TABLE|INDEX|FUNCTION|TRIGGER) (?:IF NOT EXISTS )?(?:\{schema\}\.)?([a-z_]+)`)
	table   = regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS \{schema\}\.([a-z_]+) \(\n(.*?)\n\)`)
	column  = regexp.MustCompile(`(?m)^    "?([a-z_0-9]+)"? `)
)

// objects lists what the set's files create, read from the files themselves so
// that there is no second list to keep.
func (s set) objects() ([]object, error) {
	text, err := s.text()
	if err != nil {
		return nil, err
	}
	out := []object{{kind: "table", name: s.version}}
	for _, m := range creates.FindAllStringSubmatch(text, -1) {
		out = append(out, object{kind: strings.ToLower(m[1]), name: m[2]})
	}
	return out, nil
}

// columns lists the columns of each table that the set's files create.
func (s set) columns() (map[string][]string, error) {
	text, err := s.text()
	if err != nil {
		return nil, err
	}
	out := map[string][]string{s.version: {"version", "applied_at"}}
	for _, m := range table.FindAllStringSubmatch(text, -1) {
		for _, c := range column.FindAllStringSubmatch(m[2], -1) {
			out[m[1]] = append(out[m[1]], c[1])
		}
	}
	return out, nil
}

func (s set) text() (string, error) {
	names, err := fs.Glob(files, s.folder+"/*.sql")
	if err != nil {
		return "", fmt.Errorf("list embedded migrations: %w", err)
	}
	var b strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", fmt.Errorf("read embedded migration %s: %w", name, err)
		}
		b.Write(text)
	}
	return b.String(), nil
}
