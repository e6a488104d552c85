package walrelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// A brokerDoctor looks at NATS and its streams.
type brokerDoctor struct {
	area
	cfg     *Config
	router  *router.Router
	streams []*streamDoctor
}

// A streamDoctor looks at one stream.
type streamDoctor struct {
	area
	Stream
	cfg  *Config
	seen bool
	tail publish.Tail
	info publish.StreamInfo
}

func (d *brokerDoctor) look(ctx context.Context) {
	if strings.HasPrefix(d.cfg.NATS, embeddedNATS) {
		d.ok("connection", "JetStream runs inside the relay", "walrelay run makes it with its stream")
		return
	}
	d.lookAtSigning()
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	for _, name := range d.router.Streams() {
		d.streams = append(d.streams, &streamDoctor{area: area{name: "stream " + name}, Stream: d.cfg.stream(name), cfg: d.cfg})
	}
	conn, err := d.connect(ctx)
	if err != nil {
		why, _ := words(err)
		d.add(VerdictFail, "connection", "none", why, "correct the address or what the relay shows to be let in (--nats and its companions), or start the server")
		for _, s := range d.streams {
			// Not to know it is no better than that it is missing.
			s.add(VerdictFail, "stream", "cannot be asked for", "there is no connection to NATS, so nobody knows whether the stream exists and fits",
				"connect first; then, if there is none: walrelay migrate --stream "+s.Name)
		}
		return
	}
	defer conn.Close()
	status := conn.Status()
	d.ok("connection", fmt.Sprintf("%s, nats-server %s", status.Server, conn.ServerVersion()), "events are published there")
	d.ok("max_payload", bytesOf(int64(status.MaxPayload)), "a larger event, headers included, becomes a dead letter")
	d.lookAtAccount(ctx, conn)
	permissions, told := conn.Permissions(ctx)
	for _, s := range d.streams {
		s.look(ctx, conn)
		s.lookAtSubjects(d.router, permissions, told)
	}
}

func (d *brokerDoctor) connect(ctx context.Context) (*publish.Conn, error) {
	conn, err := publish.Open(ctx, natsConnection(d.cfg, "walrelay "+d.cfg.Source+" doctor"))
	if err != nil {
		return nil, err
	}
	if err := conn.Await(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// lookAtAccount is worth a try: a relay needs no right for it.
func (d *brokerDoctor) lookAtAccount(ctx context.Context, conn *publish.Conn) {
	a, err := conn.Account(ctx)
	if api, ok := errors.AsType[*publish.APIError](err); ok {
		why, fix := publish.Trouble("any", api)
		d.add(VerdictFail, "account", "no JetStream", why, fix)
		return
	}
	if err != nil {
		d.unknown("limits of the account", plain(err)+" (the relay does not need it)")
		return
	}
	value := bytesOf(int64(a.Store)) + " of files" //nolint:gosec // a disk is smaller than 2^63 bytes
	if a.MaxStore > 0 {
		value += " of " + bytesOf(a.MaxStore)
	}
	if a.MaxStore > 0 && float64(a.Store) > nearlyFull*float64(a.MaxStore) {
		d.warn("limits of the account", value, "when they are reached nothing more is stored, and the relay waits", "raise the account's limits, or let streams go")
		return
	}
	d.ok("limits of the account", value, "when they are reached nothing more is stored, and the relay waits")
}

// nearlyFull is how full a limit may be before it is worth a word.
const nearlyFull = 0.9

// look asks the stream's leader, once.
func (s *streamDoctor) look(ctx context.Context, conn *publish.Conn) {
	tail, info, err := conn.Look(ctx, s.Name, s.cfg.Source)
	if err != nil {
		why, fix := words(err)
		if api, ok := errors.AsType[*publish.APIError](err); ok {
			why, fix = publish.Trouble(s.Name, api)
		}
		s.add(VerdictFail, "stream", "not to be had", why, fix)
		return
	}
	s.seen, s.tail, s.info = true, tail, info
	s.ok("stream", fmt.Sprintf("%d messages, %s", info.Messages, bytesOf(int64(info.Bytes))), "it can be asked, and its messages read") //nolint:gosec // a disk is smaller than 2^63 bytes
	s.lookAtMechanism()
	s.lookAtStorage()
	s.lookAtLimits()
	s.lookAtWriters()
}

func (s *streamDoctor) lookAtMechanism() {
	mechanism := "chain: the relay is its only writer"
	if s.Shared {
		mechanism = "lanes: others write to it too"
	}
	var err error
	if problems := streamProblems(s.cfg, s.Stream, s.info.Facts); len(problems) > 0 {
		err = chainError(s.Name, problems)
	}
	s.judge("mechanism", mechanism, err, "how order is kept with many messages in flight")
}

func (s *streamDoctor) lookAtStorage() {
	f := s.info.Facts
	warnings := publish.Warnings(f)
	take := func(name, value, why string, settings ...string) {
		for _, w := range warnings {
			if slices.ContainsFunc(settings, func(p string) bool { return strings.HasPrefix(w.Setting, p) }) {
				s.warn(name, value, w.Why, w.Fix)
				return
			}
		}
		s.ok(name, value, why)
	}
	take("storage", or(f.Storage, "file"), "what is acknowledged outlives a restart", "storage")
	take("replicas", fmt.Sprint(f.Replicas), "what is acknowledged outlives the loss of a server", "num_replicas")
	if f.PersistMode == "async" {
		take("persist_mode", f.PersistMode, "", "persist_mode")
	}
	take("discard", or(f.Discard, "old")+limitsOf(f), "a full stream makes the relay wait (new) or loses its oldest messages (old)", "max_msgs", "max_bytes")
	switch {
	case f.Retention == "interest":
		s.warn("retention", f.Retention, "an event that comes while no consumer exists is removed at once, unread", "make the consumers first, or use retention: limits")
	case f.MaxAge > 0:
		s.ok("retention", fmt.Sprintf("%s, max_age %v", or(f.Retention, "limits"), f.MaxAge), "a consumer that is away for longer misses events")
	default:
		s.ok("retention", or(f.Retention, "limits"), "how long messages stay")
	}
	if f.DuplicateWindow < time.Minute {
		s.warn("duplicate window", f.DuplicateWindow.String(),
			"an attempt whose acknowledgement is lost for longer is known as a repetition by the stream's end alone; whoever else writes events again, and a second relay's, are stored twice",
			fmt.Sprintf("nats stream edit %s --dupe-window 2m", s.Name))
	} else {
		s.ok("duplicate window", f.DuplicateWindow.String(), "within it the server itself knows a repeated message")
	}
}

func limitsOf(f publish.StreamFacts) string {
	var out []string
	if f.MaxMsgs > 0 {
		out = append(out, fmt.Sprintf("max_msgs %d", f.MaxMsgs))
	}
	if f.MaxBytes > 0 {
		out = append(out, "max_bytes "+bytesOf(f.MaxBytes))
	}
	if f.MaxMsgsPerSubject > 0 {
		out = append(out, fmt.Sprintf("max_msgs_per_subject %d", f.MaxMsgsPerSubject))
	}
	if len(out) == 0 {
		return ", no limit"
	}
	return ", " + strings.Join(out, ", ")
}

func (s *streamDoctor) lookAtLimits() {
	f := s.info.Facts
	if f.MaxMsgSize > 0 {
		s.ok("max_msg_size", bytesOf(int64(f.MaxMsgSize)), "a larger event, headers included, becomes a dead letter")
	}
	if full := s.info.Full(); full != nil {
		why, fix := publish.Trouble(s.Name, full)
		s.add(VerdictFail, "room", "none", why, fix)
		return
	}
	if f.Discard != "new" {
		return
	}
	used := 0.0
	if f.MaxMsgs > 0 {
		used = float64(s.info.Messages) / float64(f.MaxMsgs)
	}
	if f.MaxBytes > 0 {
		used = max(used, float64(s.info.Bytes)/float64(f.MaxBytes))
	}
	value := fmt.Sprintf("%.0f %% of its limit", 100*used)
	if used > nearlyFull {
		s.warn("room", value, "when the stream is full the relay waits, and PostgreSQL keeps the write-ahead log", "purge it, or raise the limit")
	} else if used > 0 {
		s.ok("room", value, "when the stream is full the relay waits, and PostgreSQL keeps the write-ahead log")
	}
}

// end describes the last message.
func (s *streamDoctor) end() string {
	switch {
	case s.tail.Empty:
		return "empty"
	case s.tail.Gone:
		return fmt.Sprintf("message %d, which is gone", s.tail.LastSeq)
	case s.tail.Ours:
		return fmt.Sprintf("message %d, ours, at position %s", s.tail.LastSeq, s.tail.Position)
	}
	return fmt.Sprintf("message %d on %s, source %s", s.tail.LastSeq, s.tail.Subject, or(s.tail.OtherSource, "none"))
}

func (s *streamDoctor) lookAtWriters() {
	t := s.tail
	if s.Shared || t.Empty || t.Gone || t.Ours {
		return
	}
	why := "its last message is not of this source: if that writer goes on, each message of his makes the relay stop and look"
	if t.OtherSource != "" {
		why = fmt.Sprintf("its last message is of the relay of source %q: two relays cannot both be the only writer", t.OtherSource)
	}
	s.warn("other writers", s.end(), why, "give the relay a stream of its own, or set shared: true for this stream")
}
