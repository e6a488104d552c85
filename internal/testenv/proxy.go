package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Direction is one half of what passes through a [Proxy].
type Direction string

const (
	// Upstream is what the client sends to the server.
	Upstream Direction = "upstream"
	// Downstream is what the server sends to the client.
	Downstream Direction = "downstream"
)

// A Proxy stands between clients and one server and does to their bytes what
// networks do. Faults hold for connections that exist and for new ones, until
// they are taken back. The end of a connection takes its turn behind its bytes.
type Proxy struct {
	env      *Env
	address  string
	upstream string

	mu       sync.Mutex
	listener net.Listener       // nil while cut
	stop     context.CancelFunc // ends dialling when the listener closes
	links    map[*link]struct{}
	flows    map[Direction]flow
	changed  chan struct{} // closed and made anew when flows change
	closed   bool

	running sync.WaitGroup // all goroutines
}

// A flow says what happens to the bytes of a direction. Zero: they pass.
type flow struct {
	hold    bool
	swallow bool
	latency time.Duration
}

// Proxy starts a proxy in front of upstream, a host and port. The Env closes it.
func (e *Env) Proxy(upstream string) (*Proxy, error) {
	const tries = 3
	var errs []error
	for range tries {
		// A chosen port, since Restore has to get it again.
		port, err := e.base.port(context.Background())
		if err != nil {
			return nil, err
		}
		p := &Proxy{
			env: e, address: loopback(port), upstream: upstream,
			links: make(map[*link]struct{}), flows: make(map[Direction]flow), changed: make(chan struct{}),
		}
		if err := p.Restore(); err != nil {
			errs = append(errs, err)
			continue
		}
		e.adopt(ownedProxy{p})
		return p, nil
	}
	return nil, errors.Join(errs...)
}

// Addr is the host and port that clients connect to.
func (p *Proxy) Addr() string { return p.address }

// Cut closes all connections and refuses new ones, until Restore. What was held
// is lost. It always returns nil.
func (p *Proxy) Cut() error {
	p.mu.Lock()
	if p.listener != nil {
		p.stop()
		_ = p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// Restore accepts connections again after Cut, at the same address.
func (p *Proxy) Restore() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.address)
	if err != nil {
		stop()
		return fmt.Errorf("open the proxy to %s: %w", p.upstream, err)
	}
	p.listener, p.stop = listener, stop
	p.running.Go(func() { p.accept(ctx, listener) })
	return nil
}

// Hold keeps back the bytes of a direction. Release delivers them. Of one
// connection about 32 MiB are kept; beyond that the sender has to wait.
func (p *Proxy) Hold(d Direction) error {
	p.change(d, func(f *flow) { f.hold = true })
	return nil
}

// Swallow drops the bytes of a direction: the sender sees them go. Release
// closes the connections that lost some, and lets new ones be whole.
func (p *Proxy) Swallow(d Direction) error {
	p.change(d, func(f *flow) { f.swallow = true })
	return nil
}

// Slow delays the bytes of a direction by latency. Another call changes it,
// also for bytes that are on their way.
func (p *Proxy) Slow(d Direction, latency time.Duration) error {
	p.change(d, func(f *flow) { f.latency = latency })
	return nil
}

// Release takes back all faults of a direction.
func (p *Proxy) Release(d Direction) error {
	p.change(d, func(f *flow) { *f = flow{} })
	return nil
}

// Freeze holds both directions: open connections that say nothing, as when a
// cable is pulled. Thaw ends it.
func (p *Proxy) Freeze() error { return errors.Join(p.Hold(Upstream), p.Hold(Downstream)) }

// Thaw takes back all faults of both directions and delivers what was held.
func (p *Proxy) Thaw() error { return errors.Join(p.Release(Upstream), p.Release(Downstream)) }

func (p *Proxy) change(d Direction, edit func(*flow)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flows[d]
	edit(&f)
	p.flows[d] = f
	close(p.changed)
	p.changed = make(chan struct{})
}

// flow is what happens to a direction now, and tells when that changes.
func (p *Proxy) flow(d Direction) (f flow, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flows[d], p.changed
}

// Close closes all connections and stops listening.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.Cut()
	p.env.release(ownedProxy{p})
}

// accept ends when the listener is closed.
func (p *Proxy) accept(ctx context.Context, listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(ctx, client) })
	}
}

// serve joins a client to the server and returns when they have parted.
func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.upstream)
	if err != nil {
		_ = client.Close() // as a server that is down does
		return
	}
	l := &link{proxy: p, client: client, server: server, done: make(chan struct{})}
	p.mu.Lock()
	if ctx.Err() == nil {
		p.links[l] = struct{}{}
	} else {
		l.close() // cut meanwhile
	}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// ownedProxy lets an Env own a Proxy.
type ownedProxy struct{ *Proxy }

func (ownedProxy) interrupt() {}

// Close never fails.
func (o ownedProxy) Close() error {
	o.Proxy.Close()
	return nil
}
