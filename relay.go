package walrelay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.opentelemetry.io/otel/trace"

	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/quiet"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// A Relay moves events from one slot to JetStream. Its methods may be called
// from several goroutines; Run once.
type Relay struct {
	cfg    Config
	log    *slog.Logger
	often  *quiet.Handler // behind log
	tracer trace.Tracer   // nil: nobody wants spans
	state  *stateBox
	count  counters

	streams []string // that the routes name
	now     func() time.Time
	looks   time.Duration // between two looks at slot and streams

	mu      sync.Mutex
	current *session               // nil between sessions
	conn    *publish.Conn          // nil before Run
	acked   map[string]dedup.Known // per stream: what this process knows to be stored, over all its sessions
	lastErr string                 // why the last session ended
	lastEnd time.Time
	first   int       // number of the host of PostgreSQL that is tried first
	hosts   int       // how many there are; 0 before the first session
	renewed time.Time // when a session last ended only to take up a stream

	seenJob atomic.Int64 // newest job that a session has looked at, or that has ended a wait
}

// New checks the configuration and does no I/O. Its error joins a
// [*ConfigError] for each problem.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	// Each change of state is logged, and what repeats itself is counted.
	states := cfg.Logger.With(slog.String("source", cfg.Source), slog.String("slot", cfg.Slot))
	often := quiet.New(states.Handler())
	routes, err := newRouter(&cfg)
	if err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, log: slog.New(often), often: often, state: newStateBox(states), now: time.Now, looks: inspectEvery, streams: routes.Streams(), acked: map[string]dedup.Known{}}
	if cfg.Tracer != nil {
		r.tracer = cfg.Tracer.Tracer(tracerScope)
	}
	return r, nil
}

// Run relays until ctx ends, then waits for what is in flight (at most
// DrainTimeout), confirms it and returns nil. It waits for whatever time or an
// operator can mend, for ever, and names it in [Relay.Status].
func (r *Relay) Run(ctx context.Context) error {
	defer r.often.Flush(context.WithoutCancel(ctx))
	nats := natsConnection(&r.cfg, "walrelay "+r.cfg.Source)
	nats.Logger = r.log
	conn, err := publish.Open(ctx, nats)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer conn.Close()
	r.mu.Lock()
	r.conn = conn
	r.mu.Unlock()

	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0),
	)
	for ctx.Err() == nil {
		relayed, err := r.runSession(ctx, conn)
		if err == nil || ctx.Err() != nil {
			if err != nil && relayed {
				r.log.WarnContext(ctx, "stopped before everything was confirmed; it will be sent again", slog.String("err", err.Error()))
			}
			break
		}
		if errors.Is(err, errRenew) {
			continue
		}
		if relayed {
			pause.Reset()
		}
		d := r.judge(ctx, err, pause.NextBackOff())
		if halts(err) {
			r.waitAsked(ctx, d)
		} else {
			r.wait(ctx, d)
		}
	}
	r.state.set(context.WithoutCancel(ctx), StateStopped, "")
	return nil
}

// natsConnection is how to reach NATS, for whoever is called name.
func natsConnection(c *Config, name string) publish.ConnConfig {
	return publish.ConnConfig{URLs: c.NATS, Options: c.NATSOptions, Name: name, InboxPrefix: c.NATSInboxPrefix, JSDomain: c.NATSDomain}
}

func (r *Relay) runSession(ctx context.Context, conn *publish.Conn) (relayed bool, err error) {
	s := newSession(r, conn)
	r.mu.Lock()
	r.current = s
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.current = nil
		r.remember(s)
		r.count.leftBy(s)
		switch {
		case errors.Is(err, errRenew):
			r.renewed = time.Now()
		case err != nil:
			r.lastErr, r.lastEnd = err.Error(), time.Now()
		}
	}()
	err = s.run(ctx)
	return s.relayed.Load(), err
}

// remember keeps what the session knows to be stored: the next one must find
// at least that.
func (r *Relay) remember(s *session) {
	for _, st := range s.streams {
		if known := st.stored(); known.LastSeq >= r.acked[st.name].LastSeq {
			r.acked[st.name] = known
		}
	}
}

func (r *Relay) renewedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renewed
}

const (
	// haltedPause: DESIGN wants a halted relay to look again every minute.
	haltedPause = time.Minute
	// leavePause is between two attempts while a server shuts down or restarts.
	leavePause = 2 * time.Second
	// standbyPause is how soon a standby sees that the slot was released.
	standbyPause = time.Second
)

// judge is the one place that says what the end of a session means: it sets
// the state and gives the pause before the next session.
func (r *Relay) judge(ctx context.Context, err error, pause time.Duration) time.Duration {
	if halts(err) && ofHistory(err) && r.nextHost() {
		r.state.set(ctx, StateWaiting, "trying the next host of PostgreSQL: "+err.Error())
		return pause
	}
	if halts(err) {
		r.state.set(ctx, StateHalted, err.Error())
		return haltedPause
	}
	if _, ok := errors.AsType[*witness.MissingError](err); ok {
		r.state.set(ctx, StateWaiting, err.Error())
		return 5 * time.Second
	}
	if _, ok := errors.AsType[*slot.MisfitError](err); ok {
		r.state.set(ctx, StateWaiting, err.Error())
		return 5 * time.Second
	}
	switch slot.Classify(err) {
	case slot.SlotInUse:
		r.state.set(ctx, StateStandby, err.Error())
		return standbyPause
	case slot.Shutdown:
		r.state.set(ctx, StateWaiting, "PostgreSQL ended the session, as it does when it shuts down: "+err.Error())
		return leavePause
	case slot.PublicationMissing:
		r.state.set(ctx, StateWaiting, r.unpublished(err))
		return max(pause, leavePause)
	case slot.SlotLost, slot.SlotMissing, slot.Refused:
		r.state.set(ctx, StateWaiting, err.Error())
		return max(pause, leavePause)
	case slot.Transient:
		r.state.set(ctx, StateWaiting, plain(err))
		return pause
	}
	return pause
}

// unpublished says what to do about a change that the slot cannot send, since
// there was no publication when it was written: PostgreSQL looks at the
// catalogue as it was then, so that making the publication again helps only what
// is written afterwards. (That there is none now is found before the slot is
// read.)
func (r *Relay) unpublished(err error) string {
	return fmt.Sprintf("slot %q cannot send what was written while there was no publication %q: %v; give the slot up with "+
		"SELECT pg_drop_replication_slot('%s'); the relay makes a new one then and takes what is missing from the table",
		r.cfg.Slot, r.cfg.Publication, err, strings.ReplaceAll(r.cfg.Slot, "'", "''"))
}

// halts says whether going on could lose events or deliver those of another
// history.
func halts(err error) bool {
	if _, ok := errors.AsType[*HaltError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*router.ColumnError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*witness.HistoryError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*dedup.RewoundError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*dedup.ForeignError](err); ok {
		return true
	}
	_, ok := errors.AsType[*publish.SecondWriterError](err)
	return ok
}

// A HaltError stops delivery until an operator has decided.
type HaltError struct {
	Object  string // such as slot "orders"
	Problem string
	Fix     string
}

// Error names the object, what is wrong and what to do.
func (e *HaltError) Error() string { return e.Object + " " + e.Problem + ": " + e.Fix }

// plain shortens the causes that everybody knows.
func plain(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "PostgreSQL closed the connection"
	}
	return strings.ReplaceAll(err.Error(), "\n\t", " ")
}

func (r *Relay) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
