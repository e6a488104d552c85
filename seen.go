package walrelay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/internal/router"
)

// keyed is an id's hash: sets of ids are kept as these, 16 bytes each, however
// long the ids are. Two ids do not share one in the life of a database.
type keyed [16]byte

func keyOf(parts ...string) keyed {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00"))) // which no text of PostgreSQL's holds
	return keyed(sum[:16])
}

// keysOf gives what an event is known by: its id among messages, its table and
// id among dead letters.
func keysOf(e *router.Event) [2]keyed { return [2]keyed{keyOf(e.ID), keyOf(e.Table, e.ID)} }

// portion is how many events are remembered at a time while streams and tables
// are set against each other: those that take as much memory as may be in flight,
// half a million by default. Of more, the rows are taken in portions of that
// many, and the streams are read once for each.
func (c *Config) portion() int { return c.InFlightBytes / 64 }

// A seen is a set of events that can be larger than memory.
type seen struct {
	read func(ctx context.Context, note func(keyed) error) error // gives the whole set, each time anew
	most int
	keys map[keyed]struct{} // the whole set; nil where it has more than most
	gone time.Time          // see session.lookFrom
	// newer gives by stream up to when what it has let go may have been stored,
	// see session.newerMayStand.
	newer map[string]time.Time
}

// newSeen reads the set once.
func newSeen(ctx context.Context, most int, read func(ctx context.Context, note func(keyed) error) error) (*seen, error) {
	s := &seen{read: read, most: most, keys: map[keyed]struct{}{}}
	err := read(ctx, func(k keyed) error {
		if s.keys != nil {
			s.keys[k] = struct{}{}
			if len(s.keys) > most {
				s.keys = nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// among answers for the events that each gives which of them are in the set.
// The answers are to be asked for in the very order of each, which has to give
// the same events again and again. Hits is how many are in the set, or how many
// the set has.
func (s *seen) among(ctx context.Context, each func(ask func(*router.Event) error) error) (has func(*router.Event) bool, hits int, err error) {
	if s.keys != nil {
		return func(e *router.Event) bool {
			keys := keysOf(e)
			_, stored := s.keys[keys[0]]
			_, dead := s.keys[keys[1]]
			return stored || dead
		}, len(s.keys), nil
	}
	p := asking{most: s.most}
	err = each(func(e *router.Event) error {
		p.add(keysOf(e))
		if len(p.asked) < 2*s.most {
			return nil
		}
		return p.look(ctx, s.read)
	})
	if err == nil {
		err = p.look(ctx, s.read)
	}
	if err != nil {
		return nil, 0, err
	}
	at := 0
	return func(*router.Event) bool {
		at++
		return p.found.has(at - 1)
	}, p.hits, nil
}

// An asking is the events that are looked for in one reading of the set.
type asking struct {
	most  int
	asked []asked
	count int
	found bits
	hits  int
}

type asked struct {
	key   keyed
	event int
}

func (p *asking) add(keys [2]keyed) {
	if p.asked == nil {
		p.asked = make([]asked, 0, 2*p.most)
	}
	p.asked = append(p.asked, asked{keys[0], p.count}, asked{keys[1], p.count})
	p.count++
}

func (p *asking) look(ctx context.Context, read func(context.Context, func(keyed) error) error) error {
	if len(p.asked) == 0 {
		return nil
	}
	slices.SortFunc(p.asked, func(a, b asked) int { return bytes.Compare(a.key[:], b.key[:]) })
	err := read(ctx, func(k keyed) error {
		i, _ := slices.BinarySearchFunc(p.asked, k, func(a asked, k keyed) int { return bytes.Compare(a.key[:], k[:]) })
		for ; i < len(p.asked) && p.asked[i].key == k; i++ {
			if p.found.set(p.asked[i].event) {
				p.hits++
			}
		}
		return nil
	})
	p.asked = p.asked[:0]
	return err
}

// bits is a set of small numbers.
type bits []uint64

// set is false for a number that was there already.
func (b *bits) set(n int) bool {
	for n/64 >= len(*b) {
		*b = append(*b, 0)
	}
	word, bit := &(*b)[n/64], uint64(1)<<(n%64)
	before := *word&bit != 0
	*word |= bit
	return !before
}

func (b bits) has(n int) bool { return n/64 < len(b) && b[n/64]>>(n%64)&1 != 0 }
