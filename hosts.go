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

// ways gives all ways that cfg leads, and where those of each host start: a host
// may be tried in several.
func ways(cfg *pgx.ConnConfig) (all []*pgconn.FallbackConfig, starts []int) {
	all = append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
	for i, f := range all {
		if i == 0 || f.Host != all[i-1].Host || f.Port != all[i-1].Port {
			starts = append(starts, i)
		}
	}
	return all, starts
}

// follow lets cfg lead these ways and no others.
func follow(cfg *pgx.ConnConfig, ways []*pgconn.FallbackConfig) {
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
}

// turn puts the host first whose turn it is.
func (r *Relay) turn(cfg *pgx.ConnConfig) {
	all, starts := ways(cfg)
	r.mu.Lock()
	r.hosts = len(starts)
	at := starts[r.first%len(starts)]
	r.mu.Unlock()
	follow(cfg, slices.Concat(all[at:], all[:at]))
}
