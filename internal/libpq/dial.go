package libpq

import (
	"context"
	"net"
	"time"
)

// connectTimeout bounds the attempt to reach one host, authentication
// included, where connect_timeout does not. Each host has its own: one that
// does not answer must not use up the time of the next.
const connectTimeout = 20 * time.Second

// dial finds a peer that is gone without a word: TCP asks after 15 s of
// silence and gives up 20 s later.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4},
	}
	return d.DialContext(ctx, network, addr)
}
