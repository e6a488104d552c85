package testenv

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// A Direction is one half of what passes through a [Proxy].
type Direction string

const (
	// Upstream is what the client sends to the server.
	Upstream Direction = "upstream"
	// Downstream is what the server sends to the client.
	Downstream Direction = "downstream"
)

// The faults that a direction can have; each at most once.
const (
	faultHold    = "hold"
	faultSwallow = "swallow"
	faultSlow    = "slow"
)

// A Proxy stands between clients and one server and does to their bytes what
// networks do. Faults hold for connections that exist and for new ones, until
// they are taken back.
type Proxy struct {
	env   *Env
	proxy *toxiproxy.Proxy

	mu     sync.Mutex
	faults map[string]bool // by name
	cut    bool
	closed bool
}

// Proxy starts a proxy in front of upstream, a host and port. The Env closes it.
func (e *Env) Proxy(upstream string) (*Proxy, error) {
	// Not port 0: it must get the same port again after Cut.
	port, err := e.base.port(context.Background())
	if err != nil {
		return nil, err
	}
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{env: e, proxy: toxiproxy.NewProxy(api, upstream, loopback(port), upstream), faults: make(map[string]bool)}
	if err := p.proxy.Start(); err != nil {
		return nil, fmt.Errorf("start a proxy on port %d: %w", port, err)
	}
	e.adopt(proxyServer{p})
	return p, nil
}

// Addr is the host and port that clients connect to.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Cut closes all connections and refuses new ones, until Restore.
func (p *Proxy) Cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || p.closed {
		return nil
	}
	p.cut = true
	p.proxy.Stop()
	return nil
}

// Restore accepts connections again after Cut.
func (p *Proxy) Restore() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut || p.closed {
		return nil
	}
	if err := p.proxy.Start(); err != nil {
		return fmt.Errorf("restore the proxy on %s: %w", p.Addr(), err)
	}
	p.cut = false
	return nil
}

// Hold keeps back the bytes of a direction. Release delivers them.
func (p *Proxy) Hold(d Direction) error {
	const forever = 24 * time.Hour
	return p.add(faultHold, "latency", d, fmt.Sprintf(`{"latency":%d}`, forever.Milliseconds()))
}

// Swallow drops the bytes of a direction: the sender sees them go. Release
// closes the connections that lost some, and lets new ones be whole.
func (p *Proxy) Swallow(d Direction) error {
	return p.add(faultSwallow, "timeout", d, `{"timeout":0}`)
}

// Slow delays the bytes of a direction by latency. Another call changes it.
func (p *Proxy) Slow(d Direction, latency time.Duration) error {
	if err := p.remove(faultSlow, d); err != nil {
		return err
	}
	return p.add(faultSlow, "latency", d, fmt.Sprintf(`{"latency":%d}`, latency.Milliseconds()))
}

// Release takes back all faults of a direction.
func (p *Proxy) Release(d Direction) error {
	for _, fault := range []string{faultSlow, faultHold, faultSwallow} {
		if err := p.remove(fault, d); err != nil {
			return err
		}
	}
	return nil
}

// Freeze holds both directions: open connections that say nothing, as when a
// cable is pulled. Thaw ends it.
func (p *Proxy) Freeze() error {
	if err := p.Hold(Upstream); err != nil {
		return err
	}
	return p.Hold(Downstream)
}

// Thaw takes back all faults of both directions and delivers what was held.
func (p *Proxy) Thaw() error {
	if err := p.Release(Upstream); err != nil {
		return err
	}
	return p.Release(Downstream)
}

func (p *Proxy) add(fault, toxic string, d Direction, attributes string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := fault + "-" + string(d)
	if p.faults[name] || p.closed {
		return nil
	}
	text := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"toxicity":1,"attributes":%s}`, name, toxic, d, attributes)
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
		return fmt.Errorf("%s what goes %s through the proxy on %s: %w", fault, d, p.Addr(), err)
	}
	p.faults[name] = true
	return nil
}

func (p *Proxy) remove(fault string, d Direction) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := fault + "-" + string(d)
	if !p.faults[name] {
		return nil
	}
	delete(p.faults, name)
	if err := p.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
		return fmt.Errorf("end %s of what goes %s through the proxy on %s: %w", fault, d, p.Addr(), err)
	}
	return nil
}

// Close closes all connections and stops listening.
func (p *Proxy) Close() {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	cut := p.cut
	p.mu.Unlock()
	if closed {
		return
	}
	if !cut {
		p.proxy.Stop()
	}
	// A held connection ends only when it is let go.
	_ = p.Thaw()
	p.env.release(proxyServer{p})
}

// proxyServer lets an Env own a Proxy.
type proxyServer struct{ *Proxy }

func (s proxyServer) interrupt() {}

// Close never fails.
func (s proxyServer) Close() error {
	s.Proxy.Close()
	return nil
}
