package publish

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A listener is told what concerns messages in flight.
type listener interface {
	onDisconnect()
	onDenied(verb, subject string)
}

func (c *Conn) onConnect(nc *nats.Conn) {
	c.mu.Lock()
	if c.status.Server != "" || c.status.Reconnects > 0 || c.maxSeen > 0 {
		c.status.Reconnects++
	}
	c.everLinked = true
	c.status.MaxPayload = int(nc.MaxPayload())
	c.maxPayload.Store(nc.MaxPayload())
	c.maxSeen = max(c.maxSeen, c.status.MaxPayload)
	clear(c.denied) // another server, perhaps other permissions
	c.setConnectedLocked(true, nc.ConnectedUrlRedacted())
	c.mu.Unlock()
	c.log.Info("connected to NATS", slog.String("server", c.Status().Server))
}

func (c *Conn) onLost(_ *nats.Conn, err error) {
	c.mu.Lock()
	if err != nil {
		c.lostLocked(err)
	}
	was := c.status.Connected
	c.setConnectedLocked(false, "")
	c.mu.Unlock()
	if was {
		c.tell(func(s listener) { s.onDisconnect() })
	}
}

// onError gets what the server says without being asked. A permission
// violation is the only trace of a publish that was not let through.
func (c *Conn) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.status.Connected {
			c.noteLocked(err)
		} else {
			c.lostLocked(err)
		}
		return
	}
	c.trouble(err)
	verb, subject := violation(err.Error())
	c.mu.Lock()
	if len(c.denied) < 1024 {
		c.denied[verb+" "+subject] = time.Now()
	}
	c.wakeLocked()
	c.mu.Unlock()
	c.tell(func(s listener) { s.onDenied(verb, subject) })
}

// violation takes verb and subject from the server's text, which is
// Permissions Violation for Publish to "x" or for Subscription to "x".
func violation(msg string) (verb, subject string) {
	_, rest, _ := strings.Cut(msg, `"`)
	subject, _, _ = strings.Cut(rest, `"`)
	if strings.Contains(strings.ToLower(msg), "subscription to") {
		return "subscribe to", subject
	}
	return "publish", subject
}

// deniedSince says what was not permitted since t: a publish to subject, or any
// subscription under our inbox.
func (c *Conn) deniedSince(t time.Time, subject string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.denied["publish "+subject]; ok && !at.Before(t) {
		return notPermitted("publish", subject)
	}
	for key := range c.denied {
		if s, ok := strings.CutPrefix(key, "subscribe to "); ok {
			return notPermitted("subscribe to", s)
		}
	}
	return ""
}

func notPermitted(verb, subject string) string {
	if verb == "subscribe to" {
		return fmt.Sprintf("not permitted to subscribe to %q, where answers arrive: grant it, or set an inbox prefix that is granted", subject)
	}
	return fmt.Sprintf("not permitted to %s %q: grant it to the relay's NATS user", verb, subject)
}

func (c *Conn) trouble(err error) {
	c.mu.Lock()
	c.noteLocked(err)
	c.mu.Unlock()
}

// lostLocked notes why there is no connection, with the servers that were asked
// where the reason does not name one.
func (c *Conn) lostLocked(err error) {
	if !strings.Contains(err.Error(), "dial ") {
		err = fmt.Errorf("%s: %w", c.servers, err)
	}
	c.noteLocked(err)
}

func (c *Conn) noteLocked(err error) {
	c.status.LastError, c.status.LastErrorAt = err.Error(), time.Now()
}

func (c *Conn) setConnectedLocked(connected bool, server string) {
	if c.status.Connected != connected {
		c.status.Since = time.Now()
	}
	c.status.Connected, c.status.Server = connected, server
	c.wakeLocked()
}

func (c *Conn) wakeLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// tell calls f for each stream, without locks.
func (c *Conn) tell(f func(listener)) {
	c.mu.Lock()
	list := make([]listener, 0, len(c.streams))
	for s := range c.streams {
		list = append(list, s)
	}
	c.mu.Unlock()
	for _, s := range list {
		f(s)
	}
}

func (c *Conn) register(s listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s] = struct{}{}
}

func (c *Conn) unregister(s listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
}
