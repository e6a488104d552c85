package faults_test

import (
	"context"
	"slices"
	"time"

	"github.com/walrelay/walrelay/internal/testenv"
)

// wireFaults are those of each connection: the relay's to PostgreSQL, where what
// the slot sends and SQL go separate ways, that to NATS, and the standby's.
func wireFaults() (list []fault) {
	for _, w := range []struct {
		name  string
		fits  []kind
		proxy func(*stage) *testenv.Proxy
	}{
		{"SQL", []kind{single}, func(s *stage) *testenv.Proxy { return s.sql }},
		{"replication", []kind{single}, func(s *stage) *testenv.Proxy { return s.replication }},
		{"NATS", []kind{single}, func(s *stage) *testenv.Proxy { return s.now().NATSProxy }},
		{"standby", []kind{synced, plain}, func(s *stage) *testenv.Proxy { return s.between }},
	} {
		on := []string{w.name + " wire"}
		wire := func(name string, inject, mend func(*testenv.Proxy) error) {
			list = append(list, fault{
				name: w.name + " wire " + name, fits: w.fits, on: on,
				inject: func(_ context.Context, s *stage) error { return inject(w.proxy(s)) },
				mend:   func(_ context.Context, s *stage) error { return mend(w.proxy(s)) },
			})
		}
		wire("cut", (*testenv.Proxy).Cut, (*testenv.Proxy).Restore)
		wire("frozen", (*testenv.Proxy).Freeze, (*testenv.Proxy).Thaw)
		for _, d := range []testenv.Direction{testenv.Upstream, testenv.Downstream} {
			release := func(p *testenv.Proxy) error { return p.Release(d) }
			// The bytes of one direction stand still, are lost, or come late.
			wire(string(d)+" held", func(p *testenv.Proxy) error { return p.Hold(d) }, release)
			wire(string(d)+" swallowed", func(p *testenv.Proxy) error { return p.Swallow(d) }, release)
			wire(string(d)+" slow", func(p *testenv.Proxy) error { return p.Slow(d, 300*time.Millisecond) }, release)
		}
	}
	return slices.Clip(list)
}
