package publish

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func TestWhatHoldsBackOnlyOneKeyOrSubjectIsKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		text string
		want scope
	}{
		{10077, "maximum messages exceeded", scopeStream},
		{10077, "maximum bytes exceeded", scopeStream},
		{10077, "maximum messages per subject exceeded", scopeSubject},
		{10060, "expected stream does not match", scopeSubject},
		{10023, "insufficient resources", scopeStream},
		{10008, "JetStream system temporarily unavailable", scopeStream},
		{10109, "invalid operation on sealed stream", scopeStream},
		{10158, "duplicate message id is in process", scopeEvent},
		{99999, "what nobody knows", scopeEvent},
	} {
		if got := scopeOf(&APIError{Code: c.code, Description: c.text}); got != c.want {
			t.Errorf("scopeOf(%d, %q) = %d, want %d", c.code, c.text, got, c.want)
		}
	}
}

func TestHowFarALeaderHasTakenMessagesIsReadFromItsRefusal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"wrong last sequence: 17":                   17,
		"wrong last sequence: 9223372036854775807":  1<<63 - 1,
		"wrong last sequence: 0":                    0,
		"wrong last sequence: -1":                   0,
		"wrong last sequence":                       0,
		"wrong last sequence: 18446744073709551616": 0,
		"": 0,
	} {
		if got := lastTaken(&APIError{Code: 10071, Description: text}); got != want {
			t.Errorf("lastTaken(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestAStreamThatIsNoChainsCanBeLanes(t *testing.T) {
	t.Parallel()
	const timeout = 5 * time.Second
	fine := StreamFacts{Name: "EV", DuplicateWindow: 20 * time.Second, Sources: 2, DeleteMarkers: time.Hour, Schedules: true}
	if got := LaneProblems(fine, timeout); len(got) > 0 {
		t.Errorf("LaneProblems() = %v, want none", got)
	}
	if got := Problems(fine); len(got) != 3 {
		t.Errorf("Problems() = %v, want three", got)
	}
	for want, change := range map[string]func(*StreamFacts){
		"mirror":            func(f *StreamFacts) { f.Mirror = true },
		"sealed":            func(f *StreamFacts) { f.Sealed = true },
		"no_ack":            func(f *StreamFacts) { f.NoAck = true },
		"allow_msg_counter": func(f *StreamFacts) { f.Counters = true },
		"set it to at least 20s with `nats stream edit --dupe-window 20s`": func(f *StreamFacts) { f.DuplicateWindow = 19 * time.Second },
	} {
		facts := fine
		change(&facts)
		got := LaneProblems(facts, timeout)
		if len(got) != 1 || !strings.Contains(got[0].String(), want) {
			t.Errorf("LaneProblems() = %v, want %q", got, want)
		}
	}
}

// I5. Lanes store in any order, others write in between, some events are of
// before: whatever position a session goes on from, all that is stored at it or
// later stands behind its floor.
func TestAFloorIsBelowAllLaterEvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var f floors
		end := uint64(rapid.IntRange(0, 500).Draw(t, "before"))
		acked := uint64(0)
		at := func(i int) envelope.Position { return envelope.Position{Epoch: 1, Commit: envelope.LSN(100 + i)} }
		n := rapid.IntRange(1, 200).Draw(t, "events")
		stored := map[int]uint64{}
		// Events that another process stored, in places that are found out
		// only by a duplicate reply, or that the reading of the tail shows.
		var most envelope.Position
		from := end
		hidden := map[int]uint64{}
		if rapid.Bool().Draw(t, "restarted") {
			from = uint64(rapid.IntRange(0, int(end)).Draw(t, "from"))
			for i := range n {
				if rapid.IntRange(0, 3).Draw(t, "seen") == 0 {
					end++
					stored[i], most = end, at(i)
				}
			}
		} else if end > 0 && rapid.Bool().Draw(t, "hidden") {
			hidden[rapid.IntRange(0, n-1).Draw(t, "which")] = uint64(rapid.IntRange(1, int(end)).Draw(t, "where"))
		}
		f.begin(from, most)
		var open []int
		next, asked := 0, 0
		for next < n || len(open) > 0 {
			switch what := rapid.IntRange(0, 4).Draw(t, "what"); {
			case what <= 1 && next < n:
				f.sent(at(next), acked)
				if _, seen := stored[next]; !seen {
					open = append(open, next)
				}
				next++
			case what <= 3 && len(open) > 0:
				k := rapid.IntRange(0, len(open)-1).Draw(t, "lane")
				i := open[k]
				open = append(open[:k], open[k+1:]...)
				if seq, was := hidden[i]; was {
					f.found(at(i), seq)
					stored[i] = seq
					break
				}
				end++
				stored[i] = end
				acked = max(acked, end)
			case what == 4:
				end += uint64(rapid.IntRange(0, 100).Draw(t, "foreign"))
			}
			if rapid.IntRange(0, 9).Draw(t, "witness") > 0 {
				continue
			}
			safe := next
			if len(open) > 0 {
				for safe = range next {
					if _, is := stored[safe]; !is {
						break
					}
				}
			}
			asked = rapid.IntRange(asked, max(asked, safe)).Draw(t, "position")
			floor := f.at(at(asked))
			for i, seq := range stored {
				if i >= asked && seq <= floor {
					t.Fatalf("event %d stands at %d, the floor of event %d is %d", i, seq, asked, floor)
				}
			}
		}
	})
}
