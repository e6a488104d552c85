package walrelay

import (
	"fmt"
	"strings"
	"time"
)

// What to do with an event that can never be published.
const (
	// PoisonDeadLetter records it and goes on. The default.
	PoisonDeadLetter = "dead-letter"
	// PoisonPark records it, and each later event of its aggregate behind it,
	// until it is dealt with; then those are published in their order.
	PoisonPark = "park"
	// PoisonHalt stops delivery at it until an operator has decided.
	PoisonHalt = "halt"
)

// What to do with an event that no route or stream takes.
const (
	// UnroutedWait holds delivery at it, in order, until one does. The
	// default.
	UnroutedWait = "wait"
	// UnroutedDeadLetter records it and goes on.
	UnroutedDeadLetter = "dead-letter"
)

const (
	floodWindow = time.Minute
	// floodRow is how many refusals of one reason in a row, without an event
	// published in between, are a bad setting too.
	floodRow = 20
	// floodIDs is how many of them are named.
	floodIDs = 3
)

// A flood counts refusals by reason: very many of one kind are not bad events
// but a bad setting, and recording them all would bury the good ones. It is
// pure.
type flood struct {
	limit int // in floodWindow
	by    map[string]*refusals
}

type refusals struct {
	times []time.Time // of the last floodWindow
	row   int
	ids   []string
}

func newFlood(limit int) *flood { return &flood{limit: limit, by: map[string]*refusals{}} }

// recent adds refusals of an earlier session, oldest first.
func (f *flood) recent(reason string, at time.Time) {
	f.of(reason).times = append(f.of(reason).times, at)
}

func (f *flood) of(reason string) *refusals {
	r := f.by[reason]
	if r == nil {
		r = &refusals{}
		f.by[reason] = r
	}
	return r
}

// published ends every row.
func (f *flood) published() {
	for _, r := range f.by {
		r.row, r.ids = 0, nil
	}
}

// refused counts one more and says whether they are too many.
func (f *flood) refused(reason, id string, now time.Time) (tooMany bool) {
	r := f.of(reason)
	for len(r.times) > 0 && now.Sub(r.times[0]) > floodWindow {
		r.times = r.times[1:]
	}
	r.times = append(r.times, now)
	r.row++
	r.ids = append(r.ids, strings.Clone(id))
	if len(r.ids) > floodIDs {
		r.ids = r.ids[1:]
	}
	return len(r.times) > f.limit || r.row > min(floodRow, f.limit)
}

// describe names the reason and three ids.
func (f *flood) describe(reason string) string {
	r := f.of(reason)
	return fmt.Sprintf("%d events were refused for one reason, %s (%d in a row; the last ones: %s): a setting is wrong rather than the events. "+
		"Mend it, or let them become dead letters with walrelay deadletters accept --reason %s",
		len(r.times), reason, r.row, strings.Join(r.ids, ", "), reason)
}
