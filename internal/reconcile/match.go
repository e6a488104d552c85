package reconcile

import (
	"bytes"
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// matchers is how many parts are in memory at a time at most.
const matchers = 4

// A matcher sets the records of rows, dead letters and messages against each
// other, part by part. It is pure but for reading the spills.
type matcher struct {
	// proven says that every row of the snapshot was delivered; else a row is
	// only where its own flag says so.
	proven bool
	// removed tells of each stream until when what it removed was stored; 0
	// for a stream that removed nothing.
	removed []tick
	// since is when an event must have been written to be judged as unknown; 0
	// judges none.
	since tick
	// started is when the source first ran; 0 if not known.
	started tick
	limit   int

	out matched
}

// matched is what a matcher finds, with the first ones of each kind.
type matched struct {
	missing, unknown, again, different          first
	onTheirWay, deadLettered, skipped, unrouted uint64
	notJudged, replayed, notCompared            uint64
	beforeStart                                 uint64   // of the missing rows
	gone                                        []uint64 // rows that may be removed, by stream
}

func (m *matched) firsts() []*first { return []*first{&m.missing, &m.unknown, &m.again, &m.different} }

// merge adds what was found in other parts.
func (m *matched) merge(other *matched) {
	for i, f := range other.firsts() {
		mine := m.firsts()[i]
		mine.count += f.count
		mine.kept = append(mine.kept, f.kept...)
	}
	m.onTheirWay += other.onTheirWay
	m.deadLettered += other.deadLettered
	m.skipped += other.skipped
	m.unrouted += other.unrouted
	m.notJudged += other.notJudged
	m.replayed += other.replayed
	m.notCompared += other.notCompared
	m.beforeStart += other.beforeStart
	for i, n := range other.gone {
		m.gone[i] += n
	}
}

// first counts and keeps the entries of the lowest refs.
type first struct {
	count uint64
	kept  []pair
}

// A pair is an entry with another one that it was compared with.
type pair struct{ e, with entry }

func (f *first) add(limit int, e, with entry) {
	f.count++
	f.kept = append(f.kept, pair{e, with})
	if len(f.kept) >= 2*limit+64 {
		f.trim(limit)
	}
}

func (f *first) trim(limit int) {
	slices.SortFunc(f.kept, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.e.stream, b.e.stream), cmp.Compare(a.e.ref, b.e.ref))
	})
	f.kept = f.kept[:min(limit, len(f.kept))]
}

// run matches all that is in the spills, several parts at a time.
func (m *matcher) run(spills ...*spill) error {
	workers := make([]matcher, min(runtime.GOMAXPROCS(0), matchers))
	var next atomic.Int64
	var g errgroup.Group
	for i := range workers {
		w := &workers[i]
		*w = *m
		w.out = matched{gone: make([]uint64, len(m.removed))}
		g.Go(func() error { return w.parts(&next, spills) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	m.out = workers[0].out
	for i := range workers[1:] {
		m.out.merge(&workers[1+i].out)
	}
	for _, f := range m.out.firsts() {
		f.trim(m.limit)
	}
	return nil
}

// parts matches one part after the other, as long as there are any.
func (m *matcher) parts(next *atomic.Int64, spills []*spill) error {
	var b []byte
	var group []entry
	for part := next.Add(1) - 1; part < partitions; part = next.Add(1) - 1 {
		b = b[:0]
		for _, s := range spills {
			var err error
			if b, err = s.read(int(part), b); err != nil {
				return err
			}
		}
		group = group[:0]
		for at := 0; at < len(b); at += recordBytes {
			var e entry
			e.decode(b[at:])
			group = append(group, e)
		}
		slices.SortFunc(group, func(a, b entry) int {
			if c := bytes.Compare(a.key[:], b.key[:]); c != 0 {
				return c
			}
			return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.stream, b.stream), cmp.Compare(a.ref, b.ref))
		})
		for rest := group; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].key == rest[0].key {
				n++
			}
			m.event(rest[:n])
			rest = rest[n:]
		}
	}
	return nil
}

// event judges all that is known of one event id: its rows, its messages in the
// order of streams and sequences, its dead letters.
func (m *matcher) event(group []entry) {
	rows := count(group, ofRow)
	messages := count(group[rows:], ofMessage)
	letters := len(group) - rows - messages
	m.messages(group[:rows], group[rows:rows+messages], letters)
	if messages > 0 {
		return
	}
	for _, row := range group[:rows] {
		switch {
		case row.flags&flagNewer != 0:
		case letters > 0:
			m.out.deadLettered++
		default:
			m.absent(row)
		}
	}
}

func count(group []entry, of uint8) int {
	n := 0
	for n < len(group) && group[n].of == of {
		n++
	}
	return n
}

// absent judges a row that is in no stream and no dead letter.
func (m *matcher) absent(row entry) {
	switch {
	case row.flags&flagSkip != 0:
		m.out.skipped++
	case row.flags&flagUnrouted != 0:
		m.out.unrouted++
	case !m.proven && row.flags&flagProven == 0:
		m.out.onTheirWay++
	case row.stream != noStream && m.removed[row.stream] != 0 && row.when <= m.removed[row.stream]:
		m.out.gone[row.stream]++
	default:
		m.out.missing.add(m.limit, row, entry{})
		if row.when != 0 && row.when < m.started {
			m.out.beforeStart++
		}
	}
}

func (m *matcher) messages(rows, messages []entry, letters int) {
	var before *entry // the first one that was not forced
	for i := range messages {
		msg := messages[i]
		switch {
		case msg.flags&flagForced != 0:
			m.out.replayed++
		case before != nil:
			m.out.again.add(m.limit, msg, *before)
		default:
			before = &messages[i]
		}
		if len(rows) == 0 {
			switch {
			case letters > 0: // known: its row is deleted, its record is not
			case m.since == 0, msg.flags&flagNewer != 0, msg.when < m.since:
				m.out.notJudged++
			default:
				m.out.unknown.add(m.limit, msg, entry{})
			}
			continue
		}
		m.compare(rows, msg)
	}
}

// compare looks for a row that makes this very message.
func (m *matcher) compare(rows []entry, msg entry) {
	published := 0
	for _, row := range rows {
		if row.flags&(flagSkip|flagUnrouted|flagRefused) != 0 {
			continue
		}
		if row.digest == msg.digest {
			return
		}
		published++
	}
	if published == 0 {
		m.out.notCompared++
		return
	}
	m.out.different.add(m.limit, msg, rows[0])
}
