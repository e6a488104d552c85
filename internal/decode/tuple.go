package decode

// A Tuple is a row: one value for each column of its relation, in that order.
type Tuple []Value

// A ValueKind tells how a column's value was sent.
type ValueKind uint8

// The forms of a value.
const (
	Null      ValueKind = iota // SQL's null
	Unchanged                  // large, stored apart and not changed by this update, and therefore not sent
	Text                       // as the type's output function prints it
	Binary                     // as the type's send function writes it; only where the option binary is on
)

// String gives the form in lower case, such as null.
func (k ValueKind) String() string {
	switch k {
	case Null:
		return "null"
	case Unchanged:
		return "unchanged"
	case Text:
		return "text"
	case Binary:
		return "binary"
	}
	return "unknown"
}

// A Value is one column of a row. Only Kind tells null from an unchanged and
// from an empty value.
type Value struct {
	Kind ValueKind
	// Data is the value of kind Text or Binary, never nil there, and nil
	// otherwise. It points into the bytes given to [Decoder.Decode].
	Data []byte
}

// columnPart names a column in an error. The name is made only there: most
// rows have none.
func columnPart(rel *Relation, i int) string {
	return "column " + quoteIdent(rel.Columns[i].Name) + " of " + rel.String()
}

// tuple reads a row of rel. A nil dst checks the row and keeps nothing of it.
func (r *reader) tuple(rel *Relation, dst *Tuple) {
	at := r.at
	n := int(r.uint16("number of columns"))
	if r.err == nil && n != len(rel.Columns) {
		r.fail("number of columns", at, "the row has %d and %s was described with %d", n, rel, len(rel.Columns))
	}
	for i := 0; i < n && r.err == nil; i++ {
		at = r.at
		v := r.value()
		if r.err != nil {
			r.err.What, r.err.At = columnPart(rel, i), at
			return
		}
		if dst != nil {
			*dst = append(*dst, v)
		}
	}
}

func (r *reader) value() Value {
	at := r.at
	switch c := r.byte("form"); c {
	case 'n':
		return Value{Kind: Null}
	case 'u':
		return Value{Kind: Unchanged}
	case 't':
		return Value{Kind: Text, Data: r.take(r.length("length"), "value")}
	case 'b':
		return Value{Kind: Binary, Data: r.take(r.length("length"), "value")}
	default:
		r.fail("form", at, "%q is none of n (null), u (unchanged), t (text), b (binary)", c)
		return Value{}
	}
}
