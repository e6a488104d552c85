package reconcile

import (
	"strings"
	"time"
)

// A tick is a time in steps of ten milliseconds, in four bytes: since some
// fourteen months before the snapshot. What is older counts as that old; 0 is
// no time.
type tick uint32

const (
	tickLength = 10 * time.Millisecond
	tickPast   = 400 * 24 * time.Hour
)

// A clock makes ticks of times, and back.
type clock struct{ base time.Time }

func newClock(now time.Time) clock { return clock{now.Add(-tickPast).Truncate(time.Second)} }

func (c clock) tick(at time.Time) tick {
	if at.IsZero() {
		return 0
	}
	n := at.Sub(c.base) / tickLength
	return tick(min(max(n, 1), 1<<32-1))
}

func (c clock) time(t tick) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return c.base.Add(time.Duration(t) * tickLength)
}

// parse reads a timestamp as PostgreSQL prints it under our settings. It gives 0
// for what is no time of our era.
func (c clock) parse(s string) tick {
	const form = "2006-01-02 15:04:05"
	if len(s) < len(form) || s[4] != '-' || s[7] != '-' || s[10] != ' ' || s[13] != ':' || s[16] != ':' || strings.HasSuffix(s, "BC") {
		return 0
	}
	bad := false
	number := func(from, to int) (v int) {
		for i := from; i < to; i++ {
			bad = bad || s[i] < '0' || s[i] > '9'
			v = v*10 + int(s[i]-'0')
		}
		return v
	}
	nanos := 0
	if rest := s[len(form):]; len(rest) > 2 && rest[0] == '.' && rest[2] >= '0' && rest[2] <= '9' {
		nanos = number(len(form)+1, len(form)+3) * int(tickLength)
	} else if len(rest) > 1 && rest[0] == '.' {
		nanos = number(len(form)+1, len(form)+2) * 10 * int(tickLength)
	}
	at := time.Date(number(0, 4), time.Month(number(5, 7)), number(8, 10), number(11, 13), number(14, 16), number(17, 19), nanos, time.UTC)
	if bad {
		return 0
	}
	return c.tick(at)
}
