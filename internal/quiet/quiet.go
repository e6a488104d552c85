// Package quiet keeps a log readable where one thing happens very often: a
// message that repeats itself is logged a few times, and then counted.
package quiet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// most is how often one message passes before it counts as repeated.
	most = 10
	// every is how long it is counted before it is logged again.
	every = time.Minute
)

// A Handler passes log records on. Of those above debug that have one message
// (and stream, where they name one) the first ten within a minute pass; further
// ones are counted, and told once a minute with the newest one's attributes and
// their number (more), until a minute passes without any. Debug passes as it is.
type Handler struct {
	next   slog.Handler
	stream string // of WithAttrs
	all    *repeats
}

// New puts a Handler before another one. Flush must be called at the end.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, all: &repeats{of: map[key]*repeat{}}}
}

type key struct{ message, stream string }

// repeats is shared by all handlers that were derived from one.
type repeats struct {
	mu sync.Mutex
	of map[key]*repeat
}

// A repeat counts one message.
type repeat struct {
	passed int
	more   int         // since the last line
	last   slog.Record // of more
	by     slog.Handler
	timer  *time.Timer
}

// Enabled asks the next handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle passes the record on, or counts it.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo || h.pass(ctx, &r) {
		return h.next.Handle(ctx, r)
	}
	return nil
}

func (h *Handler) pass(ctx context.Context, r *slog.Record) bool {
	k := key{message: r.Message, stream: h.stream}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "stream" {
			k.stream = a.Value.String()
		}
		return a.Key != "stream"
	})
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	of := h.all.of[k]
	if of == nil {
		of = &repeat{}
		ctx = context.WithoutCancel(ctx)
		of.timer = time.AfterFunc(every, func() { h.all.due(ctx, k) })
		h.all.of[k] = of
	}
	if of.passed < most {
		of.passed++
		return true
	}
	of.more++
	of.last, of.by = r.Clone(), h.next
	return false
}

// due ends a minute of one message.
func (a *repeats) due(ctx context.Context, k key) {
	a.mu.Lock()
	of := a.of[k]
	if of == nil { // flushed
		a.mu.Unlock()
		return
	}
	tell := of.take()
	if tell == nil {
		delete(a.of, k)
	} else {
		of.passed = most // it goes on: only its number is told
		of.timer.Reset(every)
	}
	a.mu.Unlock()
	if tell != nil {
		tell(ctx)
	}
}

// take gives what tells of the records since the last line; nil if there are
// none.
func (r *repeat) take() (tell func(context.Context)) {
	if r.more == 0 {
		return nil
	}
	record, by := r.last, r.by
	record.AddAttrs(slog.Int("more", r.more))
	r.more = 0
	return func(ctx context.Context) { _ = by.Handle(ctx, record) } // nobody is there who could be told
}

// Flush tells what was counted and not told yet, and forgets it.
func (h *Handler) Flush(ctx context.Context) {
	h.all.mu.Lock()
	var tell []func(context.Context)
	for k, of := range h.all.of {
		of.timer.Stop()
		if t := of.take(); t != nil {
			tell = append(tell, t)
		}
		delete(h.all.of, k)
	}
	h.all.mu.Unlock()
	for _, t := range tell {
		t(ctx)
	}
}

// WithAttrs gives a handler that counts together with this one.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		if a.Key == "stream" {
			with.stream = a.Value.String()
		}
	}
	with.next = h.next.WithAttrs(attrs)
	return &with
}

// WithGroup gives a handler that counts together with this one.
func (h *Handler) WithGroup(name string) slog.Handler {
	with := *h
	with.next = h.next.WithGroup(name)
	return &with
}
