package walrelay

import (
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/witness"
)

// ofHistory says whether another server might be the right one: this one is of
// another history than what was delivered, such as an old primary that is still
// up.
func ofHistory(err error) bool {
	if _, ok := errors.AsType[*witness.HistoryError](err); ok {
		return true
	}
	_, ok := errors.AsType[*dedup.RewoundError](err)
	return ok
}

// nextHost lets the next session begin with the next host. It is false once
// all of them had their turn, and then they have it again.
func (r *Relay) nextHost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first++
	return r.hosts > 1 && r.first%r.hosts != 0
}

// turn puts the host first whose turn it is.
func (r *Relay) turn(cfg *pgx.ConnConfig) {
	all := []*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}
	all = append(all, cfg.Fallbacks...)
	var starts []int // a host may be tried in several ways
	for i, f := range all {
		if i == 0 || f.Host != all[i-1].Host || f.Port != all[i-1].Port {
			starts = append(starts, i)
		}
	}
	r.mu.Lock()
	r.hosts = len(starts)
	at := starts[r.first%len(starts)]
	r.mu.Unlock()
	all = slices.Concat(all[at:], all[:at])
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}
