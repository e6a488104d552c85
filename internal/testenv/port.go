package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections (32768 and up): the port of a server that is down for a moment
// must not become some client's.
const (
	firstPort = 20000
	ports     = 12000
)

// port finds a port of the loopback interface on which nobody listens, and
// that was not given away before. Another process may take it before it is
// used; who starts a server tries again then.
func (b *base) port(ctx context.Context) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var listen net.ListenConfig
	for range 200 {
		port := firstPort + rand.IntN(ports)
		if b.ports[port] {
			continue
		}
		l, err := listen.Listen(ctx, "tcp", loopback(port))
		if err != nil {
			if ctx.Err() != nil {
				return 0, fmt.Errorf("find a free port: %w", ctx.Err())
			}
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("find a free port: %w", err)
		}
		b.ports[port] = true
		return port, nil
	}
	return 0, errors.New("find a free port: 200 tries found none from " +
		strconv.Itoa(firstPort) + " to " + strconv.Itoa(firstPort+ports-1))
}

// loopback is the address of a local port.
func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
