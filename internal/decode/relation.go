package decode

// A Relation is what one relation message said about a table. It does not
// change: when the table changes, its next row refers to a new Relation.
type Relation struct {
	// ID is the table's OID. For a partition of a publication with
	// publish_via_partition_root it is the root's.
	ID uint32
	// Schema and Name name the table at the time of its rows.
	Schema, Name string
	// ReplicaIdentity is d (primary key), n (nothing), f (full) or i
	// (an index).
	ReplicaIdentity byte
	// Columns are the published columns. A column list of the publication
	// leaves some out, and without one generated columns are left out.
	Columns []Column
	// Generation counts the relation messages that the Decoder has read,
	// this one included. It never comes twice from one Decoder, so a reader
	// may keep what it worked out for a Relation under its Generation.
	Generation uint64
}

// A Column is one published column of a [Relation].
type Column struct {
	Name string
	// TypeOID is the type's OID: below 16384 the same on every server.
	TypeOID uint32
	// TypeMod is the type's modifier, such as a length; -1 is none.
	TypeMod int32
	// Key says that the column belongs to the replica identity.
	Key bool
}

// Column gives the index of the column of that name, or -1.
func (r *Relation) Column(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// String gives schema.name, each part quoted as quote_ident of PostgreSQL
// does: only where it has to be.
func (r *Relation) String() string { return quoteIdent(r.Schema) + "." + quoteIdent(r.Name) }

// minColumnBytes is what one column takes at least: flags, an empty name's zero
// byte, type and modifier.
const minColumnBytes = 1 + 1 + 4 + 4

// relation reads the body of a relation message.
func (r *reader) relation() *Relation {
	rel := &Relation{
		ID:     r.uint32("relation id"),
		Schema: r.schema(),
		Name:   string(r.text("table name")),
	}
	rel.ReplicaIdentity = r.byte("replica identity")
	at := r.at
	n := int(r.uint16("number of columns"))
	if n > r.left()/minColumnBytes {
		r.fail("number of columns", at, "announces %d and the %d bytes left hold at most %d", n, r.left(), r.left()/minColumnBytes)
	}
	if r.err != nil {
		return nil
	}
	rel.Columns = make([]Column, 0, n)
	for range n {
		rel.Columns = append(rel.Columns, r.column())
		if r.err != nil {
			r.err.What += " of " + rel.String()
			return nil
		}
	}
	return rel
}

func (r *reader) column() Column {
	return Column{
		Key:     r.byte("flags of a column")&1 != 0,
		Name:    string(r.text("name of a column")),
		TypeOID: r.uint32("type of a column"),
		TypeMod: int32(r.uint32("type modifier of a column")), //nolint:gosec // the field is signed on the wire
	}
}

// schema reads a schema's name, which the server leaves empty for pg_catalog.
func (r *reader) schema() string {
	s := r.text("schema name")
	if len(s) == 0 {
		return "pg_catalog"
	}
	return string(s)
}
