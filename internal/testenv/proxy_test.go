package testenv_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) (address string) {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func dial(t *testing.T, p *testenv.Proxy) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatalf("connect to the proxy: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatalf("send %q: %v", text, err)
	}
}

// receive reads as many bytes as want has within the time.
func receive(conn net.Conn, want string, within time.Duration) error {
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	n, err := io.ReadFull(conn, got)
	if err != nil {
		return fmt.Errorf("got %q, then %w", got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

const (
	soon  = 10 * time.Second       // for what has to come
	while = 150 * time.Millisecond // for what must not come
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestHeldBytesAreDeliveredAfterRelease(t *testing.T) {
	t.Parallel()
	for _, direction := range []testenv.Direction{testenv.Upstream, testenv.Downstream} {
		p := envtest.Proxy(t, echo(t))
		conn := dial(t, p)
		send(t, conn, "before.")
		must(t, receive(conn, "before.", soon))
		must(t, p.Hold(direction))
		for range 20 {
			send(t, conn, "held.")
		}
		late := dial(t, p)
		send(t, late, "new connections too")
		if err := receive(conn, "h", while); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("hold %s: %v, want nothing", direction, err)
		}
		if err := receive(late, "n", while); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("hold %s: %v, want nothing", direction, err)
		}
		must(t, p.Release(direction))
		must(t, receive(conn, strings.Repeat("held.", 20), soon))
		must(t, receive(late, "new connections too", soon))
		send(t, conn, "after")
		must(t, receive(conn, "after", soon))
	}
}

func TestAFrozenProxyKeepsConnectionsOpen(t *testing.T) {
	t.Parallel()
	p := envtest.Proxy(t, echo(t))
	conn := dial(t, p)
	must(t, p.Freeze())
	send(t, conn, "hello")
	if err := receive(conn, "h", while); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("frozen: %v, want nothing", err)
	}
	must(t, p.Thaw())
	must(t, receive(conn, "hello", soon))
}

func TestSwallowedBytesNeverCome(t *testing.T) {
	t.Parallel()
	p := envtest.Proxy(t, echo(t))
	conn := dial(t, p)
	must(t, p.Swallow(testenv.Downstream))
	send(t, conn, "lost")
	if err := receive(conn, "l", while); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("swallowed: %v, want nothing", err)
	}
	must(t, p.Release(testenv.Downstream))
	if err := receive(conn, "l", soon); !errors.Is(err, io.EOF) {
		t.Errorf("after Release: %v, want the connection closed", err)
	}
	conn = dial(t, p)
	send(t, conn, "whole")
	must(t, receive(conn, "whole", soon))
}

func TestSlowBytesTakeTheirTime(t *testing.T) {
	t.Parallel()
	p := envtest.Proxy(t, echo(t))
	conn := dial(t, p)
	const latency = 200 * time.Millisecond
	must(t, p.Slow(testenv.Downstream, time.Hour))
	must(t, p.Slow(testenv.Downstream, latency))
	start := time.Now()
	send(t, conn, "slow")
	must(t, receive(conn, "slow", soon))
	if took := time.Since(start); took < latency {
		t.Errorf("took %s, want at least %s", took, latency)
	}
}

func TestACutProxyRefusesUntilRestored(t *testing.T) {
	t.Parallel()
	p := envtest.Proxy(t, echo(t))
	for range 3 {
		conn := dial(t, p)
		send(t, conn, "hello")
		must(t, receive(conn, "hello", soon))
		must(t, p.Cut())
		if err := receive(conn, "x", soon); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after Cut: %v, want a closed connection", err)
		}
		if other, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr()); err == nil {
			_ = other.Close()
			t.Error("a cut proxy takes connections")
		}
		must(t, p.Restore())
	}
}

func TestAProxyThatHoldsCanBeCutAndClosedAtOnce(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{true, false} {
		p := envtest.Proxy(t, echo(t))
		conn := dial(t, p)
		must(t, p.Hold(testenv.Downstream))
		for range 100 {
			send(t, conn, strings.Repeat("held ", 1000))
		}
		if err := receive(conn, "h", while); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want nothing", err)
		}
		_ = conn.Close()
		start := time.Now()
		if cut {
			must(t, p.Cut())
			must(t, p.Release(testenv.Downstream))
			must(t, p.Restore())
			again := dial(t, p)
			send(t, again, "again")
			must(t, receive(again, "again", soon))
		}
		p.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("cut %t: took %s", cut, took)
		}
	}
}
