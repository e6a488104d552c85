package publish

import "github.com/nats-io/nats.go"

// An answer is one acknowledgement with the number of the attempt that it
// answers.
type answer struct {
	number uint64
	ack
}

// answersMost is how many answers are taken at a time: enough to share the cost
// of a lock, few enough that the window does not run dry meanwhile.
const answersMost = 64

// answers gathers what has arrived on one subscription, so that the publisher's
// lock is taken, and the ledger told, once for all of it. It never waits: with
// the last that is there it hands all over. Its callback's goroutine owns it.
type answers struct {
	inbox string
	parse ackParser
	take  func(inbox string, answers []answer)
	list  []answer
}

// onMsg is the subscription's callback.
func (as *answers) onMsg(m *nats.Msg) {
	if number, ok := attempt(as.inbox, m); ok {
		as.list = append(as.list, answer{number: number, ack: as.parse.parse(m.Header, m.Data)})
	}
	if len(as.list) < answersMost {
		// m itself counts as pending until this returns.
		if pending, _, err := m.Sub.Pending(); err == nil && pending > 1 {
			return
		}
	}
	if len(as.list) > 0 {
		as.take(as.inbox, as.list)
		as.list = as.list[:0]
	}
}

// attempt gives the number that transmit gave the attempt which m answers.
func attempt(inbox string, m *nats.Msg) (number uint64, ok bool) {
	if len(m.Subject) <= len(inbox) {
		return 0, false
	}
	return parseDigits(m.Subject[len(inbox):])
}
