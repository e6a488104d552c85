package publish

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// A Batching says when a chain sends what waits as atomic batches.
type Batching uint8

const (
	// BatchAuto uses batches where the stream allows them and its server was
	// seen to be slow message by message, as one that syncs each write is.
	BatchAuto Batching = iota
	// BatchAlways uses batches wherever the stream allows them.
	BatchAlways
	// BatchNever uses none.
	BatchNever
)

const (
	// batchMost is the server's limit for the messages of one batch.
	batchMost = 1000
	// batchBytes is what a batch holds at most: the server stages all of it.
	batchBytes = 4 << 20
	// groupsMost is how many single messages or batches may be in flight where
	// batches are used: while the server syncs one, it takes in the next, and
	// what comes meanwhile gathers for the one behind.
	groupsMost = 2
	// refusedMost is how many batches in a row may fail before the chain does
	// without them until it has another connection.
	refusedMost = 3
	// askFirst is how many messages go in batches until the server is tried
	// message by message again, as one that stood still for a moment is taken
	// for slow; askMost what that grows to while it proves to be slow. A trial
	// takes slowRun answers.
	askFirst = 64 * batchMost
	askMost  = 64 * askFirst
)

// A batcher decides what of a chain goes in batches. A batch is stored as a
// whole or not at all, and only its first message carries the chain's
// expectation, so the stream's end tells about it what it tells about single
// messages.
//
// A batch that is refused says nothing of the one message that is to blame. So
// all of its messages are sent singly, and each has an answer of its own.
type batcher struct {
	mode   Batching
	slow   bool   // the server was seen to be slow message by message
	most   int    // messages of a batch
	singly uint64 // index of the first entry that may be part of a batch
	failed int    // batches that were refused since one was stored
	since  int    // messages that went in batches since the server was found slow
	ask    int    // with how many of them it is tried again
	id     []byte
	seqBuf []byte
}

func newBatcher(mode Batching) batcher { return batcher{mode: mode, most: batchMost, ask: askFirst} }

// fresh forgets what was learnt of a server.
func (b *batcher) fresh() { b.most, b.failed = batchMost, 0 }

func (b *batcher) wanted(f StreamFacts) bool {
	return f.AllowAtomic && b.failed < refusedMost && (b.mode == BatchAlways || b.mode == BatchAuto && b.slow)
}

// judge notes what single messages tell of the server, where they are the rule.
func (b *batcher) judge(f found) {
	switch {
	case b.slow || f == foundNothing:
	case f == foundSlow:
		b.slow, b.since = true, 0
	default:
		b.ask = askFirst
	}
}

// stored notes that a batch of n was, and says whether the server is to be tried
// message by message again. What are not many tell nothing.
func (b *batcher) stored(n int) (again bool) {
	b.failed = 0
	if b.mode != BatchAuto || !b.slow || n < slowBehind {
		return false
	}
	if b.since += n; b.since < b.ask {
		return false
	}
	b.slow, b.ask = false, min(4*b.ask, askMost)
	return true
}

// refused notes that the messages before index end, which went in one batch,
// have to go singly.
func (b *batcher) refused(end uint64, n int, f *failure) {
	b.singly = max(b.singly, end)
	switch {
	case f.code == codeBatchTooLarge:
		b.most = max(2, n/2)
	case f.class != ClassEnvironment || isBatchCode(f.code):
		b.failed++
	}
}

// together gives how many of the messages that wait are to be sent now as one
// batch; 1 is a single message, 0 is to wait for an answer.
func (s *Stream) together() int {
	if !s.batches.wanted(s.facts) {
		return 1
	}
	switch {
	case s.w.next < s.batches.singly, s.state != StateFlowing:
		return 1
	case s.w.groups >= groupsMost:
		return 0
	}
	most := min(uint64(s.batches.most), s.w.tail-s.w.next, uint64(s.limit-s.w.inFlight())) //nolint:gosec // pump has room for one at least
	n, size := 0, 0
	for uint64(n) < most {
		e := s.w.at(s.w.next + uint64(n))
		size += len(e.data)
		if n > 0 && size > batchBytes || !s.fitsInBatch(e) {
			break
		}
		n++
	}
	return max(1, n)
}

// fitsInBatch says whether the headers of a batch leave e within the limits. The
// router has not reckoned with them, so one that does not fit goes alone.
func (s *Stream) fitsInBatch(e *entry) bool {
	n := e.template.overhead + len(e.data) + batchReserve
	return n <= s.maxPayload && (s.facts.MaxMsgSize == 0 || n <= s.facts.MaxMsgSize) &&
		len(e.data)-e.bodyLen+e.template.overhead+batchReserve <= maxHeaderBlock
}

const (
	// batchReserve is how many bytes of header a batch adds to a message at
	// most.
	batchReserve = len(envelope.HeaderBatchID) + batchIDMost + len(envelope.HeaderBatchSequence) + len("1000") +
		len(envelope.HeaderBatchCommit) + len("1") + 3*len(": \r\n")
	// batchIDMost is the server's limit for a batch's id.
	batchIDMost = 64
	// maxHeaderBlock is the server's limit for the header block.
	maxHeaderBlock = 1<<16 - 1
)

// publishBatch sends the next n messages as one. Only the last has a reply
// subject: the answer to it is that to all of them.
func (s *Stream) publishBatch(n int) {
	first := s.w.next
	s.nameBatch(s.w.number(first))
	s.w.groups++
	for k := 1; k <= n; k++ {
		i := s.w.next
		e := s.w.at(i)
		e.batch = n
		err := s.transmitPart(e, k, n, s.w.seq(i)-1, s.w.number(i))
		s.w.sent()
		if err != nil {
			s.partNotSent(first, k, n, err)
			return
		}
	}
}

// nameBatch makes an id that no other batch has: of the subscription and of the
// first message's send number.
func (s *Stream) nameBatch(number uint64) {
	inbox := strings.TrimSuffix(s.inbox, ".")
	inbox = inbox[strings.LastIndexByte(inbox, '.')+1:]
	inbox = inbox[max(0, len(inbox)-batchIDMost/2):]
	s.batches.id = append(s.batches.id[:0], inbox...)
	s.batches.id = append(s.batches.id, '-')
	s.batches.id = strconv.AppendUint(s.batches.id, number, 10)
}

// transmitPart hands e to the client as message k of n in the batch that was
// named last.
func (s *Stream) transmitPart(e *entry, k, n int, last, number uint64) error {
	p := e.template.part(k, n)
	s.batches.seqBuf = strconv.AppendInt(s.batches.seqBuf[:0], int64(k), 10)
	p.set(text(s.batches.id), text(s.batches.seqBuf))
	s.seqBuf = strconv.AppendUint(s.seqBuf[:0], last, 10)
	e.fill(&s.msg, text(s.seqBuf))
	s.msg.Header, s.msg.Reply = p.header, ""
	if k == n {
		s.replyTo = append(s.replyTo[:0], s.inbox...)
		s.replyTo = strconv.AppendUint(s.replyTo, number, 10)
		s.msg.Reply = text(s.replyTo)
	}
	if len(s.msg.Subject)+len(s.inbox)+20 >= maxControlLine {
		return errControlLine
	}
	return s.nc.PublishMsg(&s.msg)
}

// partNotSent judges an error of the client at message k of a batch. Where that
// is not the last, the batch cannot be committed any more, so nothing of it is
// stored.
func (s *Stream) partNotSent(first uint64, k, n int, err error) {
	f, sent := s.clientFailure(s.w.at(s.w.next-1), err)
	if k < n || !sent {
		for i := first; i < s.w.next; i++ {
			s.w.answer(s.w.at(i))
		}
		s.w.groups--
	}
	s.cut = s.cut || !sent && f.class == ClassResync
	s.batchFailed(first, n, f)
}

// onBatchAck judges the answer to a batch of n whose last message is entry i.
func (s *Stream) onBatchAck(i uint64, n int, a ack) (stored bool) {
	first := i + 1 - uint64(n) //nolint:gosec // as many were sent
	for k := first; k <= i; k++ {
		if e := s.w.at(k); !e.answered {
			s.w.answer(e)
		}
	}
	if f := s.readBatch(i, n, a); f != nil {
		s.batchFailed(first, n, f)
		return false
	}
	for k := first; k <= i; k++ {
		s.w.at(k).acked = true
	}
	s.acked = max(s.acked, s.w.seq(i))
	if s.batches.stored(n) {
		s.pace.anew()
	}
	s.count.Batches++
	return true
}

// readBatch gives nil if the answer says that the batch of n that ends with
// entry i is stored in its place.
func (s *Stream) readBatch(i uint64, n int, a ack) *failure {
	e := s.w.at(i)
	if a.kind == ackDuplicate {
		// A server answers no batch like this.
		a = ack{kind: ackOther, stream: s.cfg.Stream}
	}
	if a.kind == ackStored && a.count != n {
		return &failure{class: ClassResync, rank: rankCause, reason: "a batch of " + strconv.Itoa(n) + " messages was acknowledged as one of " + strconv.Itoa(a.count)}
	}
	return s.read(i, e, a)
}

// batchFailed stops sending. Whatever the failure is for a message, for the
// messages of a batch it is only a reason to send them singly: what is wrong
// with one of them its own answer will tell.
func (s *Stream) batchFailed(first uint64, n int, f *failure) {
	s.batches.refused(first+uint64(n), n, f) //nolint:gosec // small
	if f.class == ClassPermanent || isBatchCode(f.code) {
		f.class, f.permanent, f.rank = ClassResync, "", rankConsequence
	}
	f.duplicate = 0
	f.reason = "a batch of " + strconv.Itoa(n) + " messages: " + f.reason
	s.fail(f)
}

// isBatchCode says whether an error says no more than that this batch cannot be
// stored as a batch.
func isBatchCode(code int) bool {
	switch code {
	case codeBatchDisabled, codeBatchIncomplete, codeBatchHeader, codeBatchTooLarge, codeBatchDuplicate:
		return true
	}
	return false
}

// A part is one of the three sets of headers that a template has for the
// messages of a batch. It shares the values with the template.
type part struct {
	header  nats.Header
	id, seq *string
}

func (p *part) set(id, seq string) { *p.id, *p.seq = id, seq }

// The places in a batch that differ in their headers.
const (
	partFirst  = iota // with the chain's expectation
	partMiddle        // with neither
	partLast          // commits
	partCount
)

// part gives the headers for message k of n, n being 2 at least.
func (t *template) part(k, n int) *part {
	at := partMiddle
	switch k {
	case 1:
		at = partFirst
	case n:
		at = partLast
	}
	if t.parts[at] == nil {
		t.parts[at] = t.newPart(at)
	}
	return t.parts[at]
}

func (t *template) newPart(at int) *part {
	p := &part{header: make(nats.Header, len(t.header)+2)}
	for name, values := range t.header {
		if name != envelope.HeaderExpectedLastSeq || at == partFirst {
			p.header[name] = values
		}
	}
	one := func(name, value string) *string {
		p.header[name] = []string{value}
		return &p.header[name][0]
	}
	p.id, p.seq = one(envelope.HeaderBatchID, ""), one(envelope.HeaderBatchSequence, "")
	if at == partLast {
		one(envelope.HeaderBatchCommit, "1")
	}
	return p
}
