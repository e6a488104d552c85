package quiet_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrelay/walrelay/internal/quiet"
)

// A buffer is written by the handler's timer and read by the test: the bubble's
// clock orders them, which the race detector does not know.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

func logger(out *buffer) (*slog.Logger, *quiet.Handler) {
	h := quiet.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return slog.New(h), h
}

// A thousand of one kind are ten lines and their number, once a minute as long
// as they come, and nothing is left out of the count.
func TestWhatRepeatsItselfIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		log, h := logger(&out)
		for i := range 1000 {
			log.Warn("waits", slog.Int("i", i))
			log.Debug("every single one", slog.Int("i", i))
		}
		log.Info("another thing")
		if n := strings.Count(out.String(), "msg=waits"); n != 10 {
			t.Errorf("%d lines at first, want 10", n)
		}
		if n := strings.Count(out.String(), "every single one"); n != 1000 {
			t.Errorf("%d lines of debug, want 1000", n)
		}
		if !strings.Contains(out.String(), `msg="another thing"`) {
			t.Error("another message was left out")
		}
		out.Reset()
		time.Sleep(61 * time.Second) // of the bubble
		synctest.Wait()
		if got := out.String(); got != "level=WARN msg=waits i=999 more=990\n" {
			t.Errorf("after a minute: %q, want the number of the others", got)
		}
		out.Reset()
		log.Warn("waits", slog.Int("i", 1000)) // it goes on
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if got := out.String(); got != "level=WARN msg=waits i=1000 more=1\n" {
			t.Errorf("after the second minute: %q", got)
		}
		time.Sleep(2 * time.Minute) // it is over
		synctest.Wait()
		out.Reset()
		log.Warn("waits", slog.Int("i", 1001))
		if got := out.String(); got != "level=WARN msg=waits i=1001\n" {
			t.Errorf("when it comes again: %q, want it at once", got)
		}
		h.Flush(t.Context())
	})
}

// Streams are told apart, wherever their name is put, and what is derived counts
// together.
func TestStreamsAreCountedApart(t *testing.T) {
	t.Parallel()
	var out buffer
	log, h := logger(&out)
	for i := range 15 {
		log.With(slog.Int("session", i), slog.String("stream", "A")).Info("goes on")
		log.WithGroup("g").Info("goes on", slog.String("stream", "B"))
	}
	h.Flush(t.Context())
	for _, want := range []string{"session=14 stream=A more=5", "g.stream=B g.more=5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 22 {
		t.Errorf("%d lines, want 10 and a count for each of two streams", n)
	}
	out.Reset()
	h.Flush(t.Context())
	if len(out.String()) > 0 {
		t.Errorf("a second flush tells %q", out.String())
	}
}
