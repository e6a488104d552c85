package reconcile

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func TestATickReadsWhatPostgreSQLPrints(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	c := newClock(now)
	for text, want := range map[string]time.Time{
		"2026-11-29 11:59:59.678123+00": now.Add(-330 * time.Millisecond),
		"2026-11-29 11:59:59.5+00":      now.Add(-500 * time.Millisecond),
		"2026-11-29 11:59:59.05+00":     now.Add(-950 * time.Millisecond),
		"2026-11-29 12:00:00+00":        now,
		"2026-11-29 12:00:00":           now,
		"infinity":                      {},
		"0044-03-15 00:00:00+00 BC":     {},
		"":                              {},
		"2026-11-2x 12:00:00+00":        {},
	} {
		if got := c.time(c.parse(text)); !got.Equal(want) {
			t.Errorf("parse(%q) = %v, want %v", text, got, want)
		}
	}
	if got := c.parse("1999-01-01 00:00:00+00"); got != 1 {
		t.Errorf("a time of long ago is tick %d, want the oldest one", got)
	}
	if got := c.parse("2999-01-01 00:00:00+00"); got != 1<<32-1 {
		t.Errorf("a time far ahead is tick %d, want the newest one", got)
	}
}

func TestASpillGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	s := &spill{dir: t.TempDir()}
	defer s.close()
	const n = 200_000
	random := rand.New(rand.NewPCG(1, 2))
	var b [recordBytes]byte
	for i := range uint64(n) {
		e := entry{digest: random.Uint64(), ref: i, when: tick(i), of: ofMessage, flags: uint8(i), stream: uint16(i)}
		binary.LittleEndian.PutUint64(e.key[:], random.Uint64())
		binary.LittleEndian.PutUint64(e.key[8:], e.digest)
		e.encode(&b)
		if err := s.add(&b); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v (%v) while the spill is open, want nothing", left, err)
	}
	seen := make([]bool, n)
	for part := range partitions {
		all, err := s.read(part, nil)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(all); at += recordBytes {
			var e entry
			e.decode(all[at:])
			if int(e.key[0]) != part || binary.LittleEndian.Uint64(e.key[8:]) != e.digest || e.when != tick(e.ref) || e.of != ofMessage ||
				e.flags != uint8(e.ref) || e.stream != uint16(e.ref) || seen[e.ref] {
				t.Fatalf("part %d has %+v", part, e)
			}
			seen[e.ref] = true
		}
	}
	for i, ok := range seen {
		if !ok {
			t.Fatalf("record %d is lost", i)
		}
	}
}

// match runs a matcher over entries.
func match(t *testing.T, m *matcher, entries ...entry) matched {
	t.Helper()
	s := &spill{dir: t.TempDir()}
	defer s.close()
	var b [recordBytes]byte
	for i := range entries {
		entries[i].encode(&b)
		if err := s.add(&b); err != nil {
			t.Fatal(err)
		}
	}
	if m.limit == 0 {
		m.limit = 10
	}
	if err := m.run(s); err != nil {
		t.Fatal(err)
	}
	return m.out
}

func TestAMatcherJudgesEachEventByWhatIsThereOfIt(t *testing.T) {
	t.Parallel()
	id := key{1}
	row := func(flags uint8) entry { return entry{key: id, of: ofRow, digest: 7, when: 500, flags: flags} }
	msg := func(seq, digest uint64, flags uint8) entry {
		return entry{key: id, of: ofMessage, ref: seq, digest: digest, when: 500, flags: flags}
	}
	letter := entry{key: id, of: ofLetter, stream: noStream}
	type result struct{ Missing, Unknown, Again, Different, OnTheirWay, Dead, Skipped, Unrouted, NotJudged, Replayed, NotCompared, Gone uint64 }
	for name, c := range map[string]struct {
		unproven bool
		removed  tick
		since    tick
		entries  []entry
		want     result
	}{
		"two events of one part":            {entries: []entry{row(0), {key: key{1, 2}, of: ofMessage, digest: 7}}, want: result{Missing: 1, NotJudged: 1}},
		"stored":                            {entries: []entry{row(0), msg(1, 7, 0)}},
		"nowhere":                           {entries: []entry{row(0)}, want: result{Missing: 1}},
		"nowhere, not proven":               {unproven: true, entries: []entry{row(0)}, want: result{OnTheirWay: 1}},
		"nowhere, proven by its own":        {unproven: true, entries: []entry{row(flagProven)}, want: result{Missing: 1}},
		"nowhere, perhaps removed":          {removed: 500, entries: []entry{row(0)}, want: result{Gone: 1}},
		"nowhere, younger than the removed": {removed: 499, entries: []entry{row(0)}, want: result{Missing: 1}},
		"not proven, perhaps removed":       {unproven: true, removed: 500, entries: []entry{row(0)}, want: result{OnTheirWay: 1}},
		"refused and recorded":              {entries: []entry{row(flagRefused), letter}, want: result{Dead: 1}},
		"refused and not recorded":          {entries: []entry{row(flagRefused)}, want: result{Missing: 1}},
		"recorded and sent after all":       {entries: []entry{row(0), letter, msg(1, 7, 0)}},
		"skipped":                           {entries: []entry{row(flagSkip)}, want: result{Skipped: 1}},
		"without a route":                   {entries: []entry{row(flagUnrouted)}, want: result{Unrouted: 1}},
		"skipped now, sent before":          {entries: []entry{row(flagSkip), msg(1, 9, 0)}, want: result{NotCompared: 1}},
		"stored twice":                      {entries: []entry{msg(1, 7, 0), row(0), msg(2, 7, 0)}, want: result{Again: 1}},
		"stored three times":                {entries: []entry{msg(1, 7, 0), row(0), msg(2, 7, 0), msg(3, 7, 0)}, want: result{Again: 2}},
		"replayed":                          {entries: []entry{row(0), msg(1, 7, 0), msg(2, 7, flagForced)}, want: result{Replayed: 1}},
		"replayed, the first one gone":      {entries: []entry{row(0), msg(2, 7, flagForced)}, want: result{Replayed: 1}},
		"different":                         {entries: []entry{row(0), msg(1, 8, 0)}, want: result{Different: 1}},
		"two rows of one id, one stored":    {entries: []entry{row(0), {key: id, of: ofRow, digest: 8, when: 1}, msg(1, 8, 0), letter}},
		"without a row":                     {entries: []entry{msg(1, 7, 0)}, want: result{NotJudged: 1}},
		"without a row that has to be":      {since: 500, entries: []entry{msg(1, 7, 0)}, want: result{Unknown: 1}},
		"without a row, too old":            {since: 501, entries: []entry{msg(1, 7, 0)}, want: result{NotJudged: 1}},
		"without a row, newer":              {since: 500, entries: []entry{msg(1, 7, flagNewer)}, want: result{NotJudged: 1}},
		"its row came after the snapshot":   {since: 500, entries: []entry{row(flagNewer), msg(1, 7, 0)}},
		"came after the snapshot":           {entries: []entry{row(flagNewer)}},
		"a letter alone":                    {since: 1, entries: []entry{letter}},
		"a letter whose row is deleted":     {since: 1, entries: []entry{letter, msg(1, 7, 0)}},
	} {
		m := match(t, &matcher{proven: !c.unproven, removed: []tick{c.removed}, since: c.since}, c.entries...)
		got := result{
			m.missing.count, m.unknown.count, m.again.count, m.different.count, m.onTheirWay, m.deadLettered, m.skipped, m.unrouted,
			m.notJudged, m.replayed, m.notCompared, m.gone[0],
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFindingsAreCountedAllAndTheFirstAreShown(t *testing.T) {
	t.Parallel()
	var entries []entry
	for i := range uint64(5000) {
		e := entry{of: ofMessage, ref: 5000 - i, when: 9, stream: uint16(i % 2)}
		binary.BigEndian.PutUint64(e.key[:], (i+1)*0x9E3779B97F4A7C15)
		entries = append(entries, e)
	}
	m := match(t, &matcher{removed: []tick{0, 0}, since: 1, limit: 3}, entries...)
	var shown []uint64
	for _, p := range m.unknown.kept {
		shown = append(shown, p.e.ref)
	}
	if diff := cmp.Diff([]uint64{2, 4, 6}, shown); diff != "" || m.unknown.count != 5000 {
		t.Errorf("%d unknown, shown (-want +got):\n%s", m.unknown.count, diff)
	}
}

// No more rows can be among what a stream removed than it removed messages.
func TestRowsBeyondWhatAStreamRemovedAreMissing(t *testing.T) {
	t.Parallel()
	v := &verification{report: Report{Streams: []StreamReport{{Name: "A", Removed: 3}, {Name: "B", Removed: 9}}}, proof: proof{confirmed: true}}
	v.fill(&matched{gone: []uint64{5, 9}})
	if v.report.NotVerifiable != 12 || v.report.Missing.Count != 2 || len(v.report.Notes) != 1 {
		t.Errorf("report = %+v, want 12 not verifiable, 2 missing and a note", v.report)
	}
}

// I3: a message is out of order when one of a later position of its aggregate
// stands before it, and nothing else is.
func TestDisorderIsFoundAsByLookingAtAllPairs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.Uint64Range(0, 9), 1, 30).Draw(t, "positions")
		var messages []placed
		for i, n := range numbers {
			messages = append(messages, placed{seq: uint64(i), position: envelope.Position{Epoch: 1, Commit: envelope.LSN(n / 3), Index: n % 3}})
		}
		var want, got []uint64
		for i := range numbers {
			later, copied := false, false
			for j := range i {
				later = later || numbers[j] > numbers[i]
				copied = copied || numbers[j] == numbers[i]
			}
			if later && !copied {
				want = append(want, uint64(i))
			}
		}
		aggregate(messages, func(p, behind placed) {
			if behind.seq >= p.seq || behind.position.Compare(p.position) <= 0 {
				t.Errorf("%v is said to stand behind %v", p, behind)
			}
			got = append(got, p.seq)
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("out of order in %v (-want +got):\n%s", numbers, diff)
		}
	})
}

func TestAPositionSurvivesItsRecord(t *testing.T) {
	t.Parallel()
	want := envelope.Position{Epoch: 1<<24 - 1, Commit: 1<<64 - 1, Index: 1<<indexBits - 1}
	got := readPlaced(orderRecord(newHasher(), nil, 7, want)[:])
	if got.position != want || got.seq != 7 {
		t.Errorf("read back %+v, want %v at 7", got, want)
	}
}

func TestADigestDependsOnEachPart(t *testing.T) {
	t.Parallel()
	h := newHasher()
	sum := func(stream int, subject string, headers []envelope.Header, size int, body string) digest {
		d := h.begin(stream, subject)
		for _, header := range headers {
			d = h.header(d, header.Name, header.Value)
		}
		return h.body(d, size, []byte(body))
	}
	ab := []envelope.Header{{Name: "A", Value: "x"}, {Name: "B", Value: "y"}}
	base := sum(0, "s", ab, 1, "b")
	if sum(0, "s", []envelope.Header{ab[1], ab[0], {Name: envelope.HeaderPosition, Value: "1/0/1/0"}, {Name: "Nats-Msg-Size", Value: "1"}}, 1, "b") != base {
		t.Error("the digest depends on the order of headers, or on those that tell of a delivery")
	}
	for name, other := range map[string]digest{
		"stream": sum(1, "s", ab, 1, "b"), "subject": sum(0, "t", ab, 1, "b"), "header": sum(0, "s", ab[:1], 1, "b"),
		"length": sum(0, "s", ab, 2, "b"), "body": sum(0, "s", ab, 1, "c"),
		"swapped values": sum(0, "s", []envelope.Header{{Name: "A", Value: "y"}, {Name: "B", Value: "x"}}, 1, "b"),
	} {
		if other == base {
			t.Errorf("the digest does not depend on the %s", name)
		}
	}
}

func TestWhatAStreamRemovedWasStoredUntilItsNextMessage(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 11, 29, 12, minute, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		removed, last uint64
		first, inside time.Time
		want          time.Time
	}{
		"nothing":                 {last: 5, first: at(1), want: time.Time{}},
		"the beginning":           {removed: 2, last: 5, first: at(1), want: at(1)},
		"one in the middle":       {removed: 1, last: 5, first: at(1), inside: at(3), want: at(3)},
		"the end":                 {removed: 1, last: 4, first: at(1), inside: at(3), want: at(9)},
		"everything":              {removed: 5, want: at(9)},
		"only after it was read":  {removed: 1, last: 5, first: at(1), want: at(1)},
		"the beginning and later": {removed: 3, last: 5, first: at(2), inside: at(4), want: at(4)},
	} {
		r := &streamReader{report: &StreamReport{Removed: c.removed}, last: c.last, firstAt: c.first, inside: c.inside}
		r.state.State.LastSeq, r.state.At = 5, at(9)
		if got := r.removedUntil(); !got.Equal(c.want) {
			t.Errorf("%s: removedUntil() = %v, want %v", name, got, c.want)
		}
	}
}
