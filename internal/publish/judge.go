package publish

import (
	"bytes"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// An end is what the stream's leader says of its end.
type end struct {
	created time.Time
	lastSeq uint64
}

// lost says whether the stream has less than was acknowledged, or is another
// one. A fresh leader may lag, so one such answer proves nothing yet.
func lost(created time.Time, acked uint64, now end) bool {
	return !now.created.Equal(created) || now.lastSeq < acked
}

// A place is what the leader has at one sequence.
type place struct {
	found bool
	msg   StoredMessage
}

// An identity is what tells a stored message from any other.
type identity struct {
	source string
	msgID  string
	pos    envelope.Position
}

func (id identity) sameID(other identity) bool {
	return id.source == other.source && id.msgID == other.msgID
}

func (p place) identity() identity {
	id := identity{source: p.msg.Header.Get(envelope.HeaderSource), msgID: p.msg.Header.Get(envelope.HeaderMsgID)}
	id.pos, _ = envelope.ParsePosition(p.msg.Header.Get(envelope.HeaderPosition))
	return id
}

// is says whether p holds entry e of source: same source, id and position. A
// message of a job can come twice with another position, so the same subject
// and body do as well.
func (p place) is(source string, e *entry) bool {
	id := p.identity()
	if id.source != source || id.msgID != e.id() {
		return false
	}
	return id.pos == e.pos || p.msg.Subject == e.subject() && bytes.Equal(p.msg.Body, e.body())
}

// unproven lists the sequences that must be read before a resync is judged:
// the places of all entries up to lastSeq that were not acknowledged in them,
// and the first one beyond what we hold. With nothing new it is the base
// itself.
//
// All of them, not only the last: a foreign message in the place of one of
// ours has that one refused, yet the next of ours finds the expectation it
// carries and is stored behind the foreign one.
func (w *window) unproven(lastSeq uint64) []uint64 {
	if lastSeq == w.base && w.base > 0 {
		return []uint64{w.base}
	}
	var seqs []uint64
	for seq := w.base + 1; seq <= lastSeq; seq++ {
		i := w.head + (seq - w.base - 1)
		if i >= w.tail {
			return append(seqs, seq)
		}
		if !w.at(i).acked {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

// A verdict is what a resync found.
type verdict struct {
	stored  uint64 // entries from head on that are in their places
	foreign uint64 // the first sequence that is not ours, 0 if none
	place   place  // what is there
	missing []envelope.Position
}

// judge decides what of w the stream has, whose end is lastSeq (not below the
// base). places has what was read of unproven. known identifies the message at
// base, where known. w must be closed.
//
// A message that is gone (consumed, expired, deleted) still has its number: it
// counts as ours if an attempt of ours may have been stored there.
func (w *window) judge(source string, known identity, lastSeq uint64, places map[uint64]place) verdict {
	var v verdict
	if lastSeq == w.base {
		p := places[w.base]
		if w.base > 0 && p.found && known.msgID != "" && !p.identity().sameID(known) {
			v.foreign, v.place = w.base, p
		}
		return v
	}
	var absent []envelope.Position
	for seq := w.base + 1; seq <= lastSeq; seq++ {
		i := w.head + (seq - w.base - 1)
		if i < w.tail && w.inPlace(source, w.at(i), places[seq]) {
			if v.foreign == 0 {
				v.stored++
			}
			v.missing = absent // something of ours stands behind all of these
			continue
		}
		if v.foreign == 0 {
			v.foreign, v.place = seq, places[seq]
		}
		if i >= w.tail {
			break
		}
		absent = append(absent, w.at(i).pos)
	}
	return v
}

func (w *window) inPlace(source string, e *entry, p place) bool {
	switch {
	case e.acked:
		return true
	case p.found:
		return p.is(source, e)
	default:
		return e.maybe
	}
}
