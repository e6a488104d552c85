package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
)

const (
	reconnectFirst = 50 * time.Millisecond
	reconnectMost  = 2 * time.Second
	// A half-open connection is given up after pingInterval*(pingsOut+1).
	pingInterval = 10 * time.Second
	pingsOut     = 2
	dialTimeout  = 5 * time.Second
	// writeTimeout bounds how long a full socket can hold up a publish.
	writeTimeout = 5 * time.Second
)

// ConnConfig is what a [Conn] needs.
type ConnConfig struct {
	// URLs is a comma-separated list of servers. Empty means nats.DefaultURL.
	URLs string
	// Options gives further options (credentials, TLS). It is called each
	// time the client is built, so that a rotated secret is read again. Nil
	// means none.
	Options func() ([]nats.Option, error)
	// Name is shown by the server. Empty means "walrelay".
	Name string
	// InboxPrefix replaces "_INBOX" in reply subjects, for users that may
	// subscribe only to their own. Empty means the default.
	InboxPrefix string
	// JSDomain is the JetStream domain, APIPrefix the whole API prefix,
	// which wins. Both empty means "$JS.API".
	JSDomain, APIPrefix string
	// RequestTimeout bounds one request to JetStream's API. Zero means 5 s.
	RequestTimeout time.Duration
	// Logger gets changes of state. Nil discards.
	Logger *slog.Logger
}

// ConnStatus is what is known of a connection.
type ConnStatus struct {
	// Connected says whether there is a connection now, Since when that
	// last changed.
	Connected bool
	Since     time.Time
	// Server is the connected server's address, without user or password.
	Server string
	// LastError is the newest trouble, LastErrorAt when it came. They stay
	// after it has passed.
	LastError   string
	LastErrorAt time.Time
	// MaxPayload is the server's limit for headers and body in bytes, 0 as
	// long as no server has been seen.
	MaxPayload int
	// Reconnects counts connections after the first, Rebuilds clients that
	// closed for good and were replaced.
	Reconnects, Rebuilds uint64
}

// A Conn is the relay's connection to NATS. It is dialled with endless
// patience, also at the start, and the client is built anew, with secrets read
// again, when it has closed for good: after two equal authorization errors, or
// an error of the protocol.
type Conn struct {
	cfg     ConnConfig
	log     *slog.Logger
	cancel  context.CancelFunc
	done    chan struct{}
	servers string // as configured, without users and passwords

	mu         sync.Mutex
	nc         *nats.Conn // nil while there is no client
	status     ConnStatus
	maxPayload atomic.Int64  // status.MaxPayload, which is asked for with each event
	maxSeen    int           // largest max_payload of any server so far
	changed    chan struct{} // closed at each change of status, if somebody waits
	denied     map[string]time.Time
	streams    map[listener]struct{}
	everLinked bool
}

// Open starts to connect. It does not need a server: an error is one of the
// configuration. Close must be called; ctx bounds nothing but the values that
// it carries.
func Open(ctx context.Context, cfg ConnConfig) (*Conn, error) {
	if cfg.URLs == "" {
		cfg.URLs = nats.DefaultURL
	}
	var hosts []string
	for raw := range strings.SplitSeq(cfg.URLs, ",") {
		u, err := serverURL(raw)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, u.Host)
	}
	if cfg.Name == "" {
		cfg.Name = "walrelay"
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = 5 * time.Second
	}
	c := &Conn{
		cfg: cfg, log: cfg.Logger, done: make(chan struct{}), servers: strings.Join(hosts, ", "),
		denied: map[string]time.Time{}, streams: map[listener]struct{}{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.status.Since = time.Now()
	opts, err := c.options(nil)
	if err != nil {
		return nil, fmt.Errorf("options of the NATS connection: %w", err)
	}
	o := nats.GetDefaultOptions()
	for _, set := range opts {
		if err := set(&o); err != nil {
			return nil, fmt.Errorf("options of the NATS connection: %w", err)
		}
	}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go c.keep(ctx)
	return c, nil
}

// serverURL parses one server; its errors do not repeat the address, which may
// hold a password.
func serverURL(s string) (*url.URL, error) {
	s = strings.TrimSpace(s)
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return nil, errors.New("NATS server address: want a list such as nats://host:4222,nats://other:4222")
	}
	return u, nil
}

// Close hangs up and waits until nothing of the connection runs.
func (c *Conn) Close() {
	c.cancel()
	<-c.done
}

// Status gives what is known now.
func (c *Conn) Status() ConnStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// MaxPayload is the server's limit for headers and body together in bytes; 0 as
// long as no server has been seen.
func (c *Conn) MaxPayload() int { return int(c.maxPayload.Load()) }

func (c *Conn) options(closed chan<- struct{}) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1), // its messages would be sent behind later ones
		nats.RetryOnFailedConnect(true),
		nats.CustomReconnectDelay(c.roundFailed),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsOut),
		nats.Timeout(dialTimeout),
		nats.FlusherTimeout(writeTimeout),
		nats.ConnectHandler(c.onConnect),
		nats.ReconnectHandler(c.onConnect),
		nats.ReconnectErrHandler(func(nc *nats.Conn, err error) { c.onLost(nc, err) }),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) { c.onLost(nc, err) }),
		nats.ErrorHandler(c.onError),
		nats.ClosedHandler(func(*nats.Conn) {
			if closed != nil {
				close(closed)
			}
		}),
	}
	if c.cfg.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.cfg.InboxPrefix))
	}
	if c.cfg.Options == nil {
		return opts, nil
	}
	more, err := c.cfg.Options()
	if err != nil {
		return nil, err
	}
	return append(more, opts...), nil // ours last: order and patience are not for others to change
}

// roundFailed is asked for a pause when no server of a round would have us. The
// client tells nobody why a greeting failed, such as for a certificate; here
// is the one place to find out.
func (c *Conn) roundFailed(attempts int) time.Duration {
	c.mu.Lock()
	if c.nc != nil && !c.status.Connected {
		if err := c.nc.LastError(); err != nil {
			c.lostLocked(err)
		}
	}
	c.mu.Unlock()
	return reconnectDelay(attempts)
}

// reconnectDelay grows from reconnectFirst to reconnectMost, with jitter.
// attempts counts rounds over all servers.
func reconnectDelay(attempts int) time.Duration {
	d := reconnectMost
	if attempts < 8 {
		d = min(reconnectMost, reconnectFirst<<max(attempts-1, 0))
	}
	return d/2 + rand.N(d/2) //nolint:gosec // jitter
}

// keep builds clients one after the other until ctx ends.
func (c *Conn) keep(ctx context.Context) {
	defer close(c.done)
	pause := newBackOff(reconnectFirst, reconnectMost)
	var said complaint
	for ctx.Err() == nil {
		closed := make(chan struct{})
		nc, err := c.build(closed)
		if err != nil {
			c.trouble(fmt.Errorf("build the NATS client: %w", err))
			if times, due := said.due(c.Status().LastError); due {
				c.log.WarnContext(ctx, "no NATS client can be built, trying again", slog.String("err", c.Status().LastError), slog.Int("times", times))
			}
		} else {
			select {
			case <-ctx.Done():
				nc.Close()
				<-closed
			case <-closed:
				if c.retire(nc) {
					pause.Reset()
					said = complaint{}
				}
				if times, due := said.due(c.Status().LastError); due {
					c.log.WarnContext(ctx, "NATS client closed for good, building another", slog.String("err", c.Status().LastError), slog.Int("times", times))
				}
			}
		}
		sleep(ctx, pause.NextBackOff())
	}
	c.retire(nil)
}

// complainEvery is how often a trouble that repeats itself is logged.
const complainEvery = time.Minute

// A complaint is a trouble that comes again and again, such as a password that
// is refused every two seconds.
type complaint struct {
	reason string
	at     time.Time // when it was logged last
	count  int       // how often it came since then
}

// due counts a trouble and says whether it is to be logged: when it is new,
// then at most once a minute.
func (l *complaint) due(reason string) (times int, due bool) {
	l.count++
	if reason == l.reason && time.Since(l.at) < complainEvery {
		return 0, false
	}
	times = l.count
	*l = complaint{reason: reason, at: time.Now()}
	return times, true
}

func (c *Conn) build(closed chan struct{}) (*nats.Conn, error) {
	opts, err := c.options(closed)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(c.cfg.URLs, opts...)
	if err != nil {
		return nil, err
	}
	c.use(nc)
	return nc, nil
}

// use makes nc the client. It may have called onConnect already, from a goroutine
// of its own: who waits for both looks again.
func (c *Conn) use(nc *nats.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nc = nc
	c.wakeLocked()
}

// retire forgets the client and says whether it had ever been connected.
func (c *Conn) retire(nc *nats.Conn) (linked bool) {
	c.mu.Lock()
	linked = c.everLinked
	c.everLinked = false
	c.nc = nil
	c.status.Rebuilds++
	if nc != nil && nc.LastError() != nil {
		c.lostLocked(nc.LastError())
	}
	c.setConnectedLocked(false, "")
	c.mu.Unlock()
	c.tell(func(s listener) { s.onDisconnect() })
	return linked
}

// noConnectionError is the reason while there is none.
type noConnectionError struct{ last string }

func (e *noConnectionError) Error() string {
	if e.last == "" {
		return "no connection to NATS"
	}
	return "no connection to NATS: " + e.last
}

// client gives the connected client, or why there is none.
func (c *Conn) client() (*nats.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nc == nil || !c.status.Connected {
		return nil, &noConnectionError{last: c.status.LastError}
	}
	return c.nc, nil
}

// await waits until there is a connection.
func (c *Conn) await(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.nc != nil && c.status.Connected {
			c.mu.Unlock()
			return nil
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// largestPayload is the largest max_payload that any server has had.
func (c *Conn) largestPayload() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maxSeen
}

func newBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = first, most, 2
	b.MaxElapsedTime = 0 // for ever
	b.Reset()
	return b
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
