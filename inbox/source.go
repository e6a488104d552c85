package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// attach finds the stream and the JetStream consumer, which it makes where
// there is none.
func (s *session) attach(ctx context.Context) error {
	c := s.c
	stream, err := c.cfg.JetStream.Stream(ctx, c.cfg.Stream)
	if err != nil {
		return fmt.Errorf("find stream %q: %w", c.cfg.Stream, err)
	}
	s.stream, s.created = stream, stream.CachedInfo().Created
	durable := c.cfg.durable()
	source, err := stream.Consumer(ctx, durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		source, err = s.make(ctx, durable)
	}
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return &settingsError{fmt.Errorf("JetStream consumer %q of stream %q is a push consumer: use another Name, or delete it", durable, c.cfg.Stream)}
	}
	if err != nil {
		return fmt.Errorf("attach to JetStream consumer %q of stream %q: %w", durable, c.cfg.Stream, err)
	}
	s.source = source
	if s.info, err = source.Info(ctx); err != nil {
		return fmt.Errorf("read the state of JetStream consumer %q: %w", durable, err)
	}
	if err := c.checkSource(s.info.Config); err != nil {
		return &settingsError{fmt.Errorf("JetStream consumer %q of stream %q: %w", durable, c.cfg.Stream, err)}
	}
	c.compareRetention(ctx, stream.CachedInfo().Config)
	return nil
}

// make makes the JetStream consumer. One that was there before, and was
// deleted, goes on where all was decided.
func (s *session) make(ctx context.Context, durable string) (jetstream.Consumer, error) {
	c := s.c
	cfg := jetstream.ConsumerConfig{
		Durable: durable, Description: "walrelay inbox " + c.cfg.Name,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.cfg.AckWait,
		MaxDeliver: -1, MaxAckPending: c.cfg.MaxAckPending,
		DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: c.cfg.Subjects,
	}
	st, err := s.readState(ctx)
	if err != nil {
		return nil, err
	}
	if st.found && st.sameStream && st.verified > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, st.verified+1
	}
	source, err := s.stream.CreateConsumer(ctx, cfg)
	if errors.Is(err, jetstream.ErrConsumerExists) { // another process was quicker
		return s.stream.Consumer(ctx, durable)
	}
	if err == nil {
		c.log.InfoContext(ctx, "JetStream consumer made", slog.String("stream", c.cfg.Stream), slog.Uint64("start_sequence", cfg.OptStartSeq))
	}
	return source, err
}

// checkSource refuses settings of the JetStream consumer that break the
// promise, each with its fix.
func (c *Consumer) checkSource(cfg jetstream.ConsumerConfig) error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	edit := fmt.Sprintf("nats consumer edit %s %s", c.cfg.Stream, c.cfg.durable())
	bad(cfg.AckPolicy != jetstream.AckExplicitPolicy,
		"its ack policy is %s, so that a message counts as done before its effect is committed; delete it and let inbox make it", cfg.AckPolicy)
	bad(cfg.MaxDeliver > 0,
		"it gives up silently after max_deliver %d deliveries; set it to -1 (%s --max-deliver=-1): Config.MaxAttempts counts, and leaves a dead letter", cfg.MaxDeliver, edit)
	if len(cfg.BackOff) > 0 {
		least := slices.Min(cfg.BackOff)
		bad(least < c.cfg.AckWait,
			"its backoff list takes the place of the ack wait, and begins another delivery after %v while a handler may run: Config.AckWait is %v; remove the list (%s --no-backoff): Config.MinBackoff and MaxBackoff set the wait between attempts",
			least, c.cfg.AckWait, edit)
	}
	bad(cfg.HeadersOnly, "it delivers headers only; delete it and let inbox make it")
	want, got := slices.Clone(c.cfg.Subjects), slices.Clone(cfg.FilterSubjects)
	if cfg.FilterSubject != "" {
		got = append(got, cfg.FilterSubject)
	}
	all := func(subjects []string) []string {
		slices.Sort(subjects)
		if subjects = slices.Compact(subjects); len(subjects) == 0 {
			return []string{">"}
		}
		return subjects
	}
	want, got = all(want), all(got)
	bad(!slices.Equal(want, got),
		"it consumes %s, and this configuration asks for %s; another service may use this name: take another Config.Name, or change the filter (%s)",
		strings.Join(got, ", "), strings.Join(want, ", "), edit)
	return errors.Join(errs...)
}

// compareRetention says, once, where a message can come back later than its
// receipt is kept.
func (c *Consumer) compareRetention(ctx context.Context, stream jetstream.StreamConfig) {
	if c.cfg.ReceiptRetention < 0 || c.compared.Swap(true) {
		return
	}
	attrs := []any{
		slog.Duration("receipt_retention", c.cfg.ReceiptRetention), slog.Duration("stream_max_age", stream.MaxAge),
		slog.Duration("replay_window", c.cfg.ReplayWindow), slog.String("stream", stream.Name),
	}
	removes := stream.Retention != jetstream.LimitsPolicy
	switch {
	case c.cfg.ReplayWindow > c.cfg.ReceiptRetention:
		c.log.WarnContext(ctx, "receipts are deleted before a replay ends to be possible: a replayed event would be applied again; raise ReceiptRetention", attrs...)
	case stream.MaxAge > c.cfg.ReceiptRetention, stream.MaxAge == 0 && !removes:
		c.log.WarnContext(ctx, "receipts are deleted before the stream's messages: a reset consumer would apply old events again; raise ReceiptRetention or set the stream's max age", attrs...)
	default:
		c.log.InfoContext(ctx, "receipts outlive the stream's messages and the replay window", attrs...)
	}
}

// A state is what the database knows of how far all is decided.
type state struct {
	found      bool
	sameStream bool
	verified   uint64
	server     string
}

func (s *session) readState(ctx context.Context) (st state, err error) {
	c := s.c
	var verified int64
	var consumer string
	args := []any{c.cfg.durable(), c.cfg.Stream, stamp(s.created)}
	err = c.read(ctx, c.sql.state, args, func(scan func(...any) error) error {
		st.found = true
		return scan(&verified, &st.sameStream, &consumer, &st.server)
	})
	if err != nil {
		return st, fmt.Errorf("read how far consumer %q is: %w", c.cfg.durable(), err)
	}
	if st.found && consumer != c.cfg.Name {
		return st, &settingsError{fmt.Errorf("the durable consumer %q of stream %q belongs to consumer %q: take another Name or Partition",
			c.cfg.durable(), c.cfg.Stream, consumer)}
	}
	st.verified = uint64(max(verified, 0))
	return st, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// register reads how far all is decided, and notes it where nothing is noted.
func (s *session) register(ctx context.Context) error {
	c := s.c
	st, err := s.readState(ctx)
	if err != nil {
		return err
	}
	floor := s.info.AckFloor.Stream
	if !st.found {
		if floor > 0 && s.info.Delivered.Consumer > 0 {
			c.log.WarnContext(ctx, "this database knows nothing of a JetStream consumer that is under way: what it has acknowledged is taken as applied; if the database was made anew, delete the JetStream consumer to begin again",
				slog.String("stream", c.cfg.Stream), slog.Uint64("ack_floor", floor))
		}
		err := c.within(ctx, func(u unit) error {
			_, err := u.exec(ctx, c.sql.register, c.cfg.durable(), c.cfg.Stream, c.cfg.Name, stamp(s.created), int64(floor)) //nolint:gosec // sequences stay below 2^63
			return err
		})
		if err != nil {
			return fmt.Errorf("register consumer %q: %w", c.cfg.durable(), err)
		}
		if st, err = s.readState(ctx); err != nil {
			return err
		}
	}
	if !st.sameStream {
		c.log.WarnContext(ctx, "the stream was made anew: its messages are taken from the start, and the receipts tell which are known", slog.String("stream", c.cfg.Stream))
		st.verified = 0
	}
	s.verified, s.server = min(st.verified, s.info.Delivered.Stream), st.server
	c.server.Store(&st.server)
	return nil
}
