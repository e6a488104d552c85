package inbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A place is a message of the stream whose event has no receipt, no dead
// letter, and is not parked.
type place struct {
	seq uint64
	key string // of its aggregate
}

// recoverBatch is how many messages are compared with the receipts at a time.
const recoverBatch = 500

// undecided calls found for each undecided message of the stream after from and
// up to to, in the order of the stream.
func (s *session) undecided(ctx context.Context, from, to uint64, found func(place)) error {
	if from >= to {
		return nil
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the state of stream %q: %w", s.c.cfg.Stream, err)
	}
	if err := s.gap(ctx, from+1, min(info.State.FirstSeq-min(1, info.State.FirstSeq), to), info.Config); err != nil {
		return err
	}
	var batch []*entry
	flush := func() error {
		places, err := s.compare(ctx, batch)
		if err != nil {
			return err
		}
		for _, p := range places {
			found(p)
		}
		batch = batch[:0]
		return nil
	}
	take := func(e *entry) error {
		if batch = append(batch, e); len(batch) >= recoverBatch {
			return flush()
		}
		return nil
	}
	read := s.readConsumer
	if info.Config.Retention == jetstream.WorkQueuePolicy {
		read = s.readOneByOne // such a stream takes no second consumer
	}
	if err := read(ctx, max(from+1, info.State.FirstSeq), min(to, info.State.LastSeq), take); err != nil {
		return fmt.Errorf("read stream %q after sequence %d: %w", s.c.cfg.Stream, from, err)
	}
	return flush()
}

// readConsumer reads headers with a consumer that ends with it.
func (s *session) readConsumer(ctx context.Context, from, to uint64, take func(*entry) error) error {
	if from > to {
		return nil
	}
	reader, err := s.compareConsumer(ctx, from)
	if err != nil {
		return err
	}
	if reader == nil {
		return s.readOneByOne(ctx, from, to, take)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = s.stream.DeleteConsumer(ctx, reader.CachedInfo().Name) // else it ends by being inactive
	}()
	pending := reader.CachedInfo().NumPending
	for pending > 0 {
		entries, err := s.readSome(ctx, reader, int(min(pending, recoverBatch)))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.seq > to {
				return nil
			}
			if err := take(e); err != nil {
				return err
			}
			pending--
		}
	}
	return nil
}

// comparers is how many processes of one consumer can compare at the same time
// with a consumer of their own; further ones read message by message.
const comparers = 2

// compareConsumer makes a consumer for the comparison, or gives nil where other
// processes have all of them. They have fixed names, so that a NATS user can be
// restricted to them: see deploy/nats/permissions.conf.
func (s *session) compareConsumer(ctx context.Context, from uint64) (jetstream.Consumer, error) {
	cfg := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		FilterSubjects: s.c.cfg.Subjects, HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
		Description: "walrelay inbox " + s.c.cfg.Name + ": compares with the receipts",
		// Two with the same settings would be one for JetStream, and each
		// process would get half of the messages.
		Metadata: map[string]string{"walrelay-session": rand.Text()},
	}
	for n := 1; n <= comparers; n++ {
		cfg.Name = fmt.Sprintf("%s-compare-%d", s.c.cfg.durable(), n)
		reader, err := s.stream.CreateConsumer(ctx, cfg)
		if !errors.Is(err, jetstream.ErrConsumerExists) {
			return reader, err
		}
	}
	return nil, nil //nolint:nilnil // as said
}

// readSome reads n messages, or says that they do not come.
func (s *session) readSome(ctx context.Context, reader jetstream.Consumer, n int) ([]*entry, error) {
	const wait = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	batch, err := reader.Fetch(n, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	entries := make([]*entry, 0, n)
	var bad error
	for msg := range batch.Messages() {
		// Without its body nobody can tell whether it was signed; what is
		// undecided is read as a whole, and judged then.
		e, err := newEntry(msg, func(m *Message) error { return m.read(s.c.cfg.Complete) })
		if err != nil {
			bad = err
			continue
		}
		entries = append(entries, e)
	}
	switch err := batch.Error(); {
	case bad != nil:
		return nil, bad
	case len(entries) > 0:
		return entries, nil
	case err != nil:
		return nil, err
	}
	return nil, errors.New("its messages do not come")
}

// readOneByOne gets messages by their sequence.
func (s *session) readOneByOne(ctx context.Context, from, to uint64, take func(*entry) error) error {
	for seq := from; seq <= to; seq++ {
		raw, err := s.stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if !s.wanted(raw.Subject) {
			continue
		}
		if err := take(s.rawEntry(raw)); err != nil {
			return err
		}
	}
	return nil
}

// wanted says whether a subject is one that is consumed.
func (s *session) wanted(subject string) bool {
	if len(s.c.cfg.Subjects) == 0 {
		return true
	}
	have := strings.Split(subject, ".")
	for _, filter := range s.c.cfg.Subjects {
		if matches(strings.Split(filter, "."), have) {
			return true
		}
	}
	return false
}

func matches(filter, subject []string) bool {
	for i, token := range filter {
		if token == ">" {
			return len(subject) > i
		}
		if i >= len(subject) || (token != "*" && token != subject[i]) {
			return false
		}
	}
	return len(filter) == len(subject)
}

// compare gives those of a batch that the database knows nothing of.
func (s *session) compare(ctx context.Context, batch []*entry) ([]place, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	type known struct {
		ID       string `json:"id"`
		Sequence uint64 `json:"sequence"`
	}
	list := make([]known, len(batch))
	keys := make(map[uint64]string, len(batch))
	for i, e := range batch {
		list[i] = known{e.ID, e.seq}
		keys[e.seq] = aggregateKey(e.Message)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("write ids as JSON: %w", err)
	}
	c := s.c
	var places []place
	err = c.read(ctx, c.sql.undecided, []any{c.cfg.Name, string(text), c.cfg.durable(), c.cfg.Stream}, func(scan func(...any) error) error {
		var id string
		var seq int64
		if err := scan(&id, &seq); err != nil {
			return err
		}
		p := place{seq: uint64(seq)} //nolint:gosec // came from a uint64
		p.key = keys[p.seq]
		places = append(places, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare messages with receipts: %w", err)
	}
	return places, nil
}

// gap lists what the stream no longer has of a range, as far as it is known to
// concern this consumer and has left no receipt.
func (s *session) gap(ctx context.Context, from, to uint64, cfg jetstream.StreamConfig) error {
	if from > to || len(s.c.cfg.Subjects) > 0 && !sameSubjects(s.c.cfg.Subjects, cfg.Subjects) {
		return nil
	}
	c := s.c
	var covered int64
	args := []any{c.cfg.Name, c.cfg.Stream, int64(from), int64(to)} //nolint:gosec // sequences stay below 2^63
	err := c.read(ctx, c.sql.covered, args, func(scan func(...any) error) error { return scan(&covered) })
	if err != nil {
		return fmt.Errorf("count receipts of a range: %w", err)
	}
	missing := int64(to-from+1) - covered //nolint:gosec // sequences stay below 2^63
	if missing <= 0 {
		return nil
	}
	c.count.gaps.Add(uint64(missing))
	c.log.ErrorContext(ctx, "gap: messages are gone from the stream, and this database has no receipts for them; `walrelay replay` publishes what the outbox still has",
		slog.String("stream", c.cfg.Stream), slog.Uint64("from", from), slog.Uint64("to", to), slog.Int64("at_most", missing))
	return nil
}

func sameSubjects(a, b []string) bool { return len(a) == 1 && len(b) == 1 && a[0] == b[0] }

// recoverOrdered takes in, before anything newer, all that is not decided: what
// was outstanding when the last process ended, and what the database has
// forgotten. JetStream would give it back in no order, and late.
func (s *session) recoverOrdered(ctx context.Context) error {
	c := s.c
	err := c.read(ctx, c.sql.parked, []any{c.cfg.durable(), c.cfg.Stream}, func(scan func(...any) error) error {
		var key string
		var seq int64
		if err := scan(&key, &seq); err != nil {
			return err
		}
		s.lanes.park(key, uint64(seq)) //nolint:gosec // came from a uint64
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the parked events of consumer %q: %w", c.cfg.durable(), err)
	}
	n := 0
	err = s.undecided(ctx, s.verified, s.info.Delivered.Stream, func(p place) {
		n++
		acked := p.seq <= s.info.AckFloor.Stream
		s.lanes.add(&entry{seq: p.seq, recovered: acked, replayed: true, suspect: s.fence.unclean && !acked}, p.key)
	})
	if err != nil {
		return err
	}
	if n > 0 {
		c.log.InfoContext(ctx, "undecided events taken from the stream, before newer ones", slog.Int("count", n),
			slog.Uint64("after", s.verified), slog.Uint64("up_to", s.info.Delivered.Stream))
	}
	return nil
}

// load gets the message of an entry of which only the place is known. It says
// false where the stream no longer has it.
func (s *session) load(ctx context.Context, e *entry) (bool, error) {
	if e.Message != nil {
		return true, nil
	}
	const tries = 4 // a replica that answers may lag behind
	for n := 0; ; n++ {
		raw, err := s.stream.GetMsg(ctx, e.seq)
		switch {
		case err == nil:
			got := s.rawEntry(raw)
			e.Message, e.foreign, e.storedAt = got.Message, got.foreign, got.storedAt
			return true, nil
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return false, fmt.Errorf("read message %d of stream %q: %w", e.seq, s.c.cfg.Stream, err)
		case n >= tries:
			s.c.count.gaps.Add(1)
			s.c.log.ErrorContext(ctx, "gap: a message is gone from the stream, and its event was not applied; `walrelay replay` publishes what the outbox still has",
				slog.String("stream", s.c.cfg.Stream), slog.Uint64("sequence", e.seq))
			return false, nil
		}
		if err := pause(ctx, troubleDelay(n)); err != nil {
			return false, err
		}
	}
}

func (s *session) rawEntry(raw *jetstream.RawStreamMsg) *entry {
	m := &Message{Raw: raw.Data, Headers: raw.Header, Subject: raw.Subject, Stream: s.c.cfg.Stream, Sequence: raw.Sequence}
	e := &entry{Message: m, seq: raw.Sequence, storedAt: raw.Time}
	e.foreign = s.c.understand(m)
	return e
}
