package walrelay

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A State says in a word what the relay does.
type State string

const (
	// StateStarting says that nothing has been tried yet.
	StateStarting State = "starting"
	// StateWaiting says that something that an operator or time can mend is in the
	// way; Reason says what. The relay tries again by itself.
	StateWaiting State = "waiting"
	// StateStandby says that another relay holds the slot; this one takes over when
	// it is released.
	StateStandby State = "standby"
	// StateRelaying says that the slot is held and events are delivered as they come.
	StateRelaying State = "relaying"
	// StateHalted says that going on could lose events or deliver those of another
	// history. Nothing is delivered until an operator has decided; Reason
	// names the command. The relay looks again every minute.
	StateHalted State = "halted"
	// StateStopping says that a stop was asked for; what is in flight is awaited.
	StateStopping State = "stopping"
	// StateStopped says that Run has returned.
	StateStopped State = "stopped"
)

// stateBox holds the state. Every change goes through it and is logged once.
type stateBox struct {
	log *slog.Logger

	mu      sync.Mutex
	state   State
	reason  string
	since   time.Time
	changed chan struct{} // closed at the next change
}

func newStateBox(log *slog.Logger) *stateBox {
	return &stateBox{log: log, state: StateStarting, since: time.Now(), changed: make(chan struct{})}
}

func (b *stateBox) set(ctx context.Context, state State, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == state && b.reason == reason {
		return
	}
	from := b.state
	if b.state != state {
		b.since = time.Now()
	}
	b.state, b.reason = state, reason
	close(b.changed)
	b.changed = make(chan struct{})
	level := slog.LevelInfo
	switch state {
	case StateWaiting:
		level = slog.LevelWarn
	case StateHalted:
		level = slog.LevelError
	case StateStarting, StateStandby, StateRelaying, StateStopping, StateStopped:
	}
	b.log.LogAttrs(ctx, level, "state changed", slog.String("from", string(from)), slog.String("state", string(state)), slog.String("reason", reason))
}

func (b *stateBox) get() (State, string, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.reason, b.since
}
