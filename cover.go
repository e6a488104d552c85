package walrelay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
)

// Where a stream lets messages go within seconds, nobody can see afterwards that
// an event was stored: the proofs must tell. So a session with such a stream
//
//   - confirms nothing behind the first event that no proven snapshot covers, so
//     that after a crash the slot sends again whatever is not proven, and
//   - remembers, until its audit, which events the slot has sent.
//
// Then every row is proven, or was sent in the session that looks, or was never
// sent: an audit finds exactly those.

// fleeting says whether a stream may let a message go before it is proven.
func fleeting(f publish.StreamFacts) bool {
	_, removes := f.Removes()
	return removes && (f.Retention != "limits" || f.MaxAge == 0 || f.MaxAge < time.Hour)
}

// A cover knows which transactions no proof covers. Its zero value limits
// nothing.
type cover struct {
	mu   sync.Mutex
	on   bool
	txs  []uncovered // in the order of their commits
	lost bool        // more than it remembers: see uncoveredMost
}

type uncovered struct {
	commit envelope.LSN
	xid    uint32
}

// uncoveredMost bounds the memory while nothing can be proven; beyond it the
// proofs limit nothing any more.
const uncoveredMost = 1 << 20

func (c *cover) begin(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = on
}

// sent notes a transaction with events.
func (c *cover) sent(commit envelope.LSN, xid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return
	}
	if len(c.txs) == uncoveredMost {
		c.on, c.txs, c.lost = false, nil, true
		return
	}
	c.txs = append(c.txs, uncovered{commit, xid})
}

// limit gives how much of safe may be confirmed.
func (c *cover) limit(safe envelope.LSN) envelope.LSN {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on || len(c.txs) == 0 {
		return safe
	}
	return min(safe, c.txs[0].commit)
}

// proven lets go what a proven snapshot sees.
func (c *cover) proven(snapshot string) error {
	seen, err := parseSnapshot(snapshot)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.txs = slices.DeleteFunc(c.txs, func(u uncovered) bool { return seen.sees(u.xid) })
	return nil
}

// A snapshot is PostgreSQL's, as pg_current_snapshot() writes it.
type snapshot struct {
	xmin, xmax uint64
	running    map[uint64]bool
}

func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q is not of the form xmin:xmax:list", text)
	}
	if s.xmin, err = strconv.ParseUint(parts[0], 10, 64); err == nil {
		s.xmax, err = strconv.ParseUint(parts[1], 10, 64)
	}
	s.running = map[uint64]bool{}
	for _, x := range strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' }) {
		var id uint64
		if id, err = strconv.ParseUint(x, 10, 64); err != nil {
			break
		}
		s.running[id] = true
	}
	if err != nil {
		return s, fmt.Errorf("snapshot %q: %w", text, err)
	}
	return s, nil
}

// sees says whether the transaction, of which the slot names the lower half of
// the number, has committed for the snapshot.
func (s snapshot) sees(xid uint32) bool {
	full := s.xmax&^(1<<32-1) | uint64(xid)
	switch { // the number closest to xmax is meant
	case full > s.xmax+1<<31 && full >= 1<<32:
		full -= 1 << 32
	case full+1<<31 < s.xmax:
		full += 1 << 32
	}
	return full < s.xmax && !s.running[full]
}
