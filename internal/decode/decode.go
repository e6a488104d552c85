package decode

// A Decoder reads the messages of one replication connection in their order and
// remembers the relations that they describe. Its zero value is ready. A new
// connection needs a new Decoder, since the server describes each table again.
// It is not safe for concurrent use.
type Decoder struct {
	relations  map[uint32]*Relation
	generation uint64
	// The last names read. They repeat, and with them no string is made anew.
	prefix, origin string
}

// Decode reads the message b into m. Slices in m point into b and are valid as
// long as b is; relations and strings stay valid. Where m is used for every
// message, only a relation message, or a prefix or origin other than the last
// one, allocates.
//
// The error is an [*Error], after which m is empty and the Decoder as it was.
func (d *Decoder) Decode(b []byte, m *Message) error {
	r := reader{b: b}
	kind := r.messageKind()
	m.reset(kind)
	if r.err == nil {
		d.body(&r, m)
		r.end()
	}
	if r.err != nil {
		m.reset(0)
		return r.err
	}
	d.learn(m)
	return nil
}

// learn takes over what a message that was read to its end has told.
func (d *Decoder) learn(m *Message) {
	if m.Kind != KindRelation {
		return
	}
	d.generation++
	m.Relation.Generation = d.generation
	if d.relations == nil {
		d.relations = make(map[uint32]*Relation)
	}
	d.relations[m.Relation.ID] = m.Relation
}

func (d *Decoder) body(r *reader, m *Message) {
	switch m.Kind {
	case KindBegin:
		m.CommitLSN = r.lsn("commit LSN")
		m.CommitTime = r.time("commit time")
		m.XID = r.uint32("transaction id")
	case KindCommit:
		r.byte("flags") // none is defined
		m.CommitLSN = r.lsn("commit LSN")
		m.EndLSN = r.lsn("end LSN")
		m.CommitTime = r.time("commit time")
	case KindRelation:
		m.Relation = r.relation()
	case KindInsert:
		if m.Relation = d.known(r); m.Relation != nil {
			r.marker("N")
			r.tuple(m.Relation, &m.Tuple)
		}
	case KindUpdate:
		if m.Relation = d.known(r); m.Relation != nil {
			// The old row, or its key, comes first where it was logged.
			if r.marker("NKO") != 'N' {
				r.tuple(m.Relation, nil)
				r.marker("N")
			}
			r.tuple(m.Relation, &m.Tuple)
		}
	case KindDelete:
		if m.Relation = d.known(r); m.Relation != nil {
			r.marker("KO")
			r.tuple(m.Relation, nil)
		}
	case KindTruncate:
		d.truncate(r, m)
	case KindType:
		// Values come as text whatever their type is called.
		r.uint32("type id")
		r.text("schema name")
		r.text("type name")
	case KindOrigin:
		r.lsn("origin LSN")
		m.OriginName = same(&d.origin, r.text("origin name"))
	case KindMessage:
		m.Transactional = r.byte("flags")&1 != 0
		r.lsn("message LSN")
		m.Prefix = same(&d.prefix, r.text("prefix"))
		m.Content = r.take(r.length("length of content"), "content")
	}
}

// known reads a relation id and gives what was said about that relation.
func (d *Decoder) known(r *reader) *Relation {
	at := r.at
	id := r.uint32("relation id")
	if r.err != nil {
		return nil
	}
	rel := d.relations[id]
	if rel == nil {
		r.fail("relation id", at, "no relation message before it describes relation %d", id)
	}
	return rel
}

// The bits of a truncate message's options.
const (
	truncateCascade         = 1 << 0
	truncateRestartIdentity = 1 << 1
)

func (d *Decoder) truncate(r *reader, m *Message) {
	at := r.at
	n := r.uint32("number of relations")
	options := r.byte("options")
	m.Cascade = options&truncateCascade != 0
	m.RestartIdentity = options&truncateRestartIdentity != 0
	if int64(n) > int64(r.left()/4) {
		r.fail("number of relations", at, "announces %d and the %d bytes left hold at most %d", n, r.left(), r.left()/4)
	}
	for i := uint32(0); i < n && r.err == nil; i++ {
		if rel := d.relations[r.uint32("relation id")]; rel != nil {
			m.Relations = append(m.Relations, rel)
		}
	}
}

// marker reads the byte that says which tuple follows, one of want.
func (r *reader) marker(want string) byte {
	at := r.at
	c := r.byte("kind of row")
	if r.err != nil {
		return 0
	}
	for i := range len(want) {
		if want[i] == c {
			return c
		}
	}
	r.fail("kind of row", at, "%q is none of %s (N new, K key, O old)", c, want)
	return 0
}

// same gives b as a string and remembers it in last, so that a repeated name
// costs no memory.
func same(last *string, b []byte) string {
	if *last != string(b) {
		*last = string(b)
	}
	return *last
}

// messageKind reads the first byte of a message.
func (r *reader) messageKind() Kind {
	switch c := r.byte("kind of message"); c {
	case 'B':
		r.kind = KindBegin
	case 'C':
		r.kind = KindCommit
	case 'R':
		r.kind = KindRelation
	case 'I':
		r.kind = KindInsert
	case 'U':
		r.kind = KindUpdate
	case 'D':
		r.kind = KindDelete
	case 'T':
		r.kind = KindTruncate
	case 'Y':
		r.kind = KindType
	case 'O':
		r.kind = KindOrigin
	case 'M':
		r.kind = KindMessage
	case 'S', 'E', 'c', 'A':
		r.fail("kind of message", 0, "unexpected message %q: streaming must be off", c)
	case 'b', 'P', 'K', 'r', 'p':
		r.fail("kind of message", 0, "unexpected message %q: two_phase must be off", c)
	default:
		r.fail("kind of message", 0, "unexpected message %q: this is not pgoutput of proto_version 1", c)
	}
	return r.kind
}
