package admin

import (
	"sync"
	"time"
)

const (
	// triesAtOnce is how many wrong tokens an address may show before it has to
	// wait; one more is allowed each triesEvery.
	triesAtOnce = 10
	triesEvery  = 6 * time.Second
	// mostAddresses bounds the memory; those beyond share one account.
	mostAddresses = 1024
	// tellEvery is how often wrong tokens of one address are logged at most.
	tellEvery = time.Minute
)

// tries counts the wrong tokens of each address. Its zero value has seen none.
type tries struct {
	mu   sync.Mutex
	from map[string]*attempts
}

type attempts struct {
	wrong  int // less one for each triesEvery since at
	at     time.Time
	untold int
	told   time.Time
}

func (a *attempts) settle(now time.Time) {
	n := int(now.Sub(a.at) / triesEvery)
	if n <= 0 {
		return
	}
	a.wrong, a.at = max(0, a.wrong-n), a.at.Add(time.Duration(n)*triesEvery)
}

// wait is how long the address has to wait before anything that it shows is
// looked at; 0 means not at all.
func (t *tries) wait(addr string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.from[t.account(addr)]
	if a == nil {
		return 0
	}
	a.settle(now)
	if a.wrong < triesAtOnce {
		return 0
	}
	return a.at.Add(triesEvery).Sub(now)
}

// failed counts a wrong token, and gives how many are to be told of, 0 where it
// was told of others just now.
func (t *tries) failed(addr string, now time.Time) (tell int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.from == nil {
		t.from = map[string]*attempts{}
	}
	t.forget(now)
	addr = t.account(addr)
	a := t.from[addr]
	if a == nil {
		a = &attempts{at: now}
		t.from[addr] = a
	}
	a.settle(now)
	a.wrong++
	a.untold++
	if now.Sub(a.told) < tellEvery {
		return 0
	}
	tell, a.untold, a.told = a.untold, 0, now
	return tell
}

// account is where an address is counted.
func (t *tries) account(addr string) string {
	if _, known := t.from[addr]; !known && len(t.from) >= mostAddresses {
		return ""
	}
	return addr
}

// forget drops those that have waited long enough, once there are many.
func (t *tries) forget(now time.Time) {
	if len(t.from) < mostAddresses {
		return
	}
	for addr, a := range t.from {
		if a.settle(now); a.wrong == 0 {
			delete(t.from, addr)
		}
	}
}
