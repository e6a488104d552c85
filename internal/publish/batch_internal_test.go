package publish

import (
	"testing"

	"github.com/walrelay/walrelay/envelope"
)

// waiting is a chain that flows, with n messages that wait.
func waiting(n int, change ...func(*Message)) *Stream {
	s := New(nil, Config{Stream: "EV", Source: "bench", Batching: BatchAlways})
	s.facts.AllowAtomic, s.maxPayload = true, 1<<20
	s.limit = 10 * batchMost
	for range n {
		m := benchMessage()
		for _, f := range change {
			f(m)
		}
		s.w.push(m, s.templates.find(m.Headers))
	}
	s.state = StateFlowing
	return s
}

func TestWhatIsSentTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n      int
		change func(*Stream)
		want   int
	}{
		"one":                {n: 1, want: 1},
		"a few":              {n: 7, want: 7},
		"a backlog":          {n: 5000, want: batchMost},
		"as the window goes": {n: 5000, change: func(s *Stream) { s.limit = 300 }, want: 300},
		"two in flight":      {n: 7, change: func(s *Stream) { s.w.groups = groupsMost }, want: 0},
		"none allowed":       {n: 7, change: func(s *Stream) { s.facts.AllowAtomic = false }, want: 1},
		"none wanted":        {n: 7, change: func(s *Stream) { s.batches.mode = BatchNever }, want: 1},
		"not slow":           {n: 7, change: func(s *Stream) { s.batches.mode = BatchAuto }, want: 1},
		"slow":               {n: 7, change: func(s *Stream) { s.batches.mode, s.batches.slow = BatchAuto, true }, want: 7},
		"after trouble":      {n: 7, change: func(s *Stream) { s.state = StateProbing }, want: 1},
		// What was refused goes one by one, and waits for nobody.
		"was refused":        {n: 7, change: func(s *Stream) { s.batches.refused(7, 7, &failure{code: codeBatchDuplicate}); s.w.groups = 5 }, want: 1},
		"behind the refused": {n: 7, change: func(s *Stream) { s.batches.refused(0, 7, &failure{code: codeBatchDuplicate}) }, want: 7},
		"refused again and again": {n: 7, change: func(s *Stream) {
			for range refusedMost {
				s.batches.refused(0, 7, &failure{code: codeBatchIncomplete})
			}
		}, want: 1},
		"a full stream is nobody's fault": {n: 7, change: func(s *Stream) {
			for range refusedMost {
				s.batches.refused(0, 7, &failure{class: ClassEnvironment, code: codeStoreFailed})
			}
		}, want: 7},
		"a smaller limit": {n: 5000, change: func(s *Stream) { s.batches.refused(0, 1000, &failure{code: codeBatchTooLarge}) }, want: 500},
	} {
		s := waiting(c.n)
		if c.change != nil {
			c.change(s)
		}
		if got := s.together(); got != c.want {
			t.Errorf("%s: %d of %d are sent together, want %d", name, got, c.n, c.want)
		}
	}
	large := waiting(10, func(m *Message) { m.Body = make([]byte, batchBytes/4) })
	large.maxPayload = batchBytes
	if got := large.together(); got != 3 {
		t.Errorf("%d messages of a quarter of what a batch holds, with their headers, are sent together, want 3", got)
	}
}

// What fits the limits only without the headers of a batch goes alone.
func TestAMessageThatABatchWouldMakeTooLargeGoesAlone(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*Stream, int){
		"max_payload":  func(s *Stream, n int) { s.maxPayload = n },
		"max_msg_size": func(s *Stream, n int) { s.facts.MaxMsgSize = n },
	} {
		s := waiting(3)
		e := s.w.at(0)
		needs := e.template.overhead + len(e.data) + batchReserve
		if limit(s, needs); s.together() != 3 {
			t.Errorf("%s of %d: not sent together", name, needs)
		}
		if limit(s, needs-1); s.together() != 1 {
			t.Errorf("%s of %d: sent together", name, needs-1)
		}
	}
	s := waiting(3, func(m *Message) {
		m.Headers = append(m.Headers, envelope.Header{Name: "x", Value: string(make([]byte, maxHeaderBlock-300))})
	})
	if got := s.together(); got != 1 {
		t.Errorf("%d messages whose headers are at the limit are sent together, want 1", got)
	}
}

// I1: whatever a batch is refused for, none of its messages is given up for it.
func TestARefusedBatchCondemnsNoMessage(t *testing.T) {
	t.Parallel()
	for _, f := range []failure{
		{class: ClassPermanent, permanent: ReasonTooLarge, rank: rankCause, code: codeTooLarge},
		{class: ClassEnvironment, rank: rankCause, code: codeBatchDuplicate},
		{class: ClassResync, rank: rankCause, duplicate: 7},
	} {
		s := waiting(5)
		s.batchFailed(0, 5, &f)
		if s.why.class != ClassResync || s.why.permanent != "" || s.why.duplicate != 0 {
			t.Errorf("failed with %+v, want no more than a resync", s.why)
		}
		for i := range uint64(5) {
			if e := s.w.at(i); e.fail != nil {
				t.Errorf("message %d is blamed: %+v", i, e.fail)
			}
		}
	}
}

// A server that stood still for a moment is taken for slow, and is not for long;
// one that is slow is tried again less and less often.
func TestAServerThatIsTakenForSlowIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBatcher(BatchAuto)
	until := func() (messages int) {
		for b.slow {
			b.stored(batchMost)
			messages += batchMost
		}
		return messages
	}
	b.judge(foundFast)
	if b.slow {
		t.Error("a fast server gets batches")
	}
	for i, want := range []int{askFirst, 4 * askFirst, 16 * askFirst, 64 * askFirst, 64 * askFirst} {
		if b.judge(foundSlow); !b.slow {
			t.Fatal("a slow server gets no batches")
		}
		b.judge(foundFast) // a message that went alone between batches
		if b.stored(slowBehind - 1); b.since != 0 {
			t.Error("a few messages count")
		}
		if got := until(); got != want {
			t.Errorf("trial %d comes after %d messages, want %d", i+1, got, want)
		}
	}
	b.judge(foundFast)
	b.judge(foundSlow)
	if got := until(); got != askFirst {
		t.Errorf("after it was fast, a trial comes after %d messages, want %d", got, askFirst)
	}
	b = newBatcher(BatchAlways)
	for range 2 * askFirst / batchMost {
		if b.stored(batchMost) {
			t.Fatal("batches that were asked for are tried without")
		}
	}
}
