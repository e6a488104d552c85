package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// A plan says what is to be done to which world, and when. All of it follows
// from the seed.
type plan struct {
	seed  uint64
	kind  kind
	long  bool // faults take their full length
	flags []string
	park  bool
	first bool // the relay begins with a backfill
	acts  []act
}

// An act is one fault, or two at the same time. The next act begins when the
// system goes on.
type act []moment

// A moment is a fault with its instant after the act's beginning, and how long
// it lasts.
type moment struct {
	fault
	after, lasts time.Duration
}

func (p *plan) String() string {
	acts := make([]string, len(p.acts))
	for i, a := range p.acts {
		faults := make([]string, len(a))
		for j, m := range a {
			faults[j] = m.name
		}
		acts[i] = strings.Join(faults, " + ")
	}
	text := fmt.Sprintf("%s: %s", p.kind, strings.Join(acts, ", then "))
	if len(p.flags) > 0 {
		text += " (" + strings.Join(p.flags, " ") + ")"
	}
	return text
}

// loses says whether a fault of it loses anything.
func (p *plan) loses() bool {
	return slices.ContainsFunc(slices.Concat(p.acts...), func(m moment) bool { return m.loses })
}

// moment places a fault in time.
func (p *plan) moment(f fault) moment {
	rnd := fixture.Random(p.seed, fmt.Sprintf("moment %d %s", len(p.acts), f.name))
	most := 700 * time.Millisecond
	if p.long {
		most = 4 * time.Second
		if rnd.IntN(8) == 0 {
			most = 35 * time.Second // longer than anybody's patience
		}
	}
	if f.hold > 0 {
		most = f.hold
	}
	return moment{
		fault: f, after: time.Duration(rnd.Int64N(int64(400 * time.Millisecond))),
		lasts: 200*time.Millisecond + time.Duration(rnd.Int64N(int64(most))),
	}
}

func (p *plan) add(faults ...fault) {
	a := make(act, len(faults))
	for i, f := range faults {
		a[i] = p.moment(f)
	}
	p.acts = append(p.acts, a)
}

// within has the second fault come and go while the first one holds.
func (p *plan) within(first, second fault) {
	a := act{p.moment(first), p.moment(second)}
	a[0].after, a[0].lasts = 0, 2500*time.Millisecond
	a[1].after = time.Second + a[1].after
	p.acts = append(p.acts, a)
}

// randomPlan makes a plan of one to three acts, most of them pairs.
func randomPlan(seed uint64, long bool) *plan {
	rnd := fixture.Random(seed, "plan")
	p := &plan{seed: seed, long: long, kind: []kind{single, single, single, single, cluster, cluster, synced, plain}[rnd.IntN(8)]}
	p.park = rnd.IntN(3) == 0
	if p.park {
		p.flags = append(p.flags, "--on-poison", "park")
	}
	if rnd.IntN(3) == 0 {
		p.flags = append(p.flags, "--heal-limit", "20") // the operator has to ask
	}
	if rnd.IntN(4) == 0 {
		p.flags = append(p.flags, "--window", "8")
	}
	if p.kind == single && rnd.IntN(6) == 0 {
		p.first = true
		p.flags = append(p.flags, "--backfill")
	}
	all := fitting(p.kind)
	usedStream := false
	pick := func(beside *fault) fault {
		for {
			f := all[rnd.IntN(len(all))]
			if beside != nil && !together(&f, beside) || f.last || usedStream && f.once() {
				continue
			}
			usedStream = usedStream || f.once()
			return f
		}
	}
	for range 1 + rnd.IntN(3) {
		f := pick(nil)
		if rnd.IntN(4) == 0 {
			p.add(f)
			continue
		}
		p.add(f, pick(&f))
	}
	for _, f := range all {
		if !f.last {
			continue
		}
		beside := pick(nil)
		for !together(&f, &beside) {
			beside = pick(nil)
		}
		p.add(f, beside)
	}
	return p
}

// once is a fault after which no other one of its sort may come: what a purge
// has removed and a restored copy has again cannot be told apart.
func (f *fault) once() bool {
	return slices.Contains(f.on, "stream") && f.loses
}
