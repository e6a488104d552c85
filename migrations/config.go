package migrations

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultName is the name of schema, publication and slot where none is given.
const DefaultName = "walrelay"

// DefaultLockTimeout bounds the wait for one lock of a table.
const DefaultLockTimeout = 10 * time.Second

// Config says what to create. The zero value is walrelay's own outbox with
// default names.
type Config struct {
	// Schema holds our tables. Empty means walrelay. Any name that
	// PostgreSQL allows.
	Schema string
	// Publication covers the outbox tables. Empty means walrelay. Any name
	// that PostgreSQL allows.
	Publication string
	// Slot is the logical replication slot: lower case letters, digits and
	// underscores, at most 63. Empty means walrelay.
	Slot string
	// Source is the relay's source, for which the slot is made. Empty means
	// the slot's name.
	Source string
	// Tables are the tables to publish. None means the outbox of Schema.
	// Other tables must exist; they are never altered.
	Tables []Table
	// Partitioned makes the outbox of Schema a table that is partitioned by
	// created_at, with partitions made ahead; what is old and proven to be
	// stored is then dropped as a whole partition. An outbox that is there and
	// is not partitioned is an error. One that is stays so without this.
	Partitioned bool
	// PartitionInterval is the length of a partition that is made from now on,
	// in whole seconds. Zero means what was set before, or else a day.
	PartitionInterval time.Duration
	// PartitionsAhead is how many are made beyond the present one, 1 to 500.
	// Zero means what was set before, or else 30.
	PartitionsAhead int
	// SchemaOnly leaves publication and slot out, for a database that is
	// never relayed, such as that of a service's tests.
	SchemaOnly bool
	// LockTimeout bounds the wait for each lock that a change of a table
	// needs: writers queue behind a change that waits. Zero means
	// DefaultLockTimeout.
	LockTimeout time.Duration
	// SlotTimeout bounds the creation of the slot, which waits for every
	// transaction that is open at that moment. Zero means no bound: who is
	// waited for is reported.
	SlotTimeout time.Duration
}

// A Table is the name of a table, as it is, without quotes.
type Table struct{ Schema, Name string }

// String gives the name as SQL takes it, quoted.
func (t Table) String() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// ParseTable reads schema.table. A part that contains a dot or a double quote
// is written in double quotes, a double quote within it twice. Letters are
// taken as they are, never folded. Without a schema it is public.
func ParseTable(s string) (Table, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := cutName(rest)
		if err != nil {
			return Table{}, fmt.Errorf("table %q: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return Table{Schema: "public", Name: parts[0]}, nil
	case 2:
		return Table{Schema: parts[0], Name: parts[1]}, nil
	default:
		return Table{}, fmt.Errorf("table %q: want schema.table; write a name that contains a dot in double quotes", s)
	}
}

// cutName takes one name off the front of s; after is empty or begins with the
// dot that ended it.
func cutName(s string) (name, after string, err error) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexByte(s, '.')
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], checkName(s[:end])
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		after = s[i+1:]
		if after != "" && after[0] != '.' {
			return "", "", errors.New("want a dot after the closing double quote")
		}
		return b.String(), after, checkName(b.String())
	}
	return "", "", errors.New("a double quote is not closed")
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// dollarTag closes the bodies of functions in our files.
const dollarTag = "$walrelay$"

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > 63:
		return fmt.Errorf("name %q is %d bytes long; PostgreSQL keeps 63", name, len(name))
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("name %q contains a NUL", name)
	case strings.Contains(name, dollarTag):
		return fmt.Errorf("name %q contains %s, which our functions use as a quote", name, dollarTag)
	default:
		return nil
	}
}

// filled gives c with its defaults, or all that is wrong with it.
func (c Config) filled() (Config, error) {
	for _, name := range []*string{&c.Schema, &c.Publication, &c.Slot} {
		if *name == "" {
			*name = DefaultName
		}
	}
	if c.Source == "" {
		c.Source = c.Slot
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = DefaultLockTimeout
	}
	if len(c.Tables) == 0 {
		c.Tables = []Table{{Schema: c.Schema, Name: "outbox"}}
	}
	var problems []error
	problem := func(field string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
	}
	problem("schema", checkName(c.Schema))
	if strings.HasPrefix(c.Schema, "pg_") {
		problem("schema", fmt.Errorf("%q: PostgreSQL keeps names that begin with pg_ for itself", c.Schema))
	}
	problem("publication", checkName(c.Publication))
	if !slotName.MatchString(c.Slot) {
		problem("slot", fmt.Errorf("%q: want 1 to 63 of lower case letters, digits and underscores", c.Slot))
	}
	for _, t := range c.Tables {
		problem("table", checkName(t.Schema))
		problem("table", checkName(t.Name))
	}
	if c.LockTimeout < 0 || c.SlotTimeout < 0 {
		problem("timeout", errors.New("must not be negative"))
	}
	if c.PartitionInterval < 0 || c.PartitionInterval%time.Second != 0 {
		problem("partition interval", fmt.Errorf("%v: want whole seconds, such as 24h", c.PartitionInterval))
	}
	if c.PartitionsAhead < 0 || c.PartitionsAhead > 500 {
		problem("partitions ahead", fmt.Errorf("%d: want 1 to 500", c.PartitionsAhead))
	}
	if !c.Partitioned && (c.PartitionInterval != 0 || c.PartitionsAhead != 0) {
		problem("partition interval, partitions ahead", errors.New("are of a partitioned outbox: ask for one"))
	}
	c.Tables = slices.Clone(c.Tables)
	return c, errors.Join(problems...)
}

// quote gives a name as SQL takes it.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal gives a string as SQL takes it where standard_conforming_strings is
// on, which our sessions pin.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
