package walrelay

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/slot"
)

// failoverVersion is the first that keeps copies of logical slots on standbys.
const failoverVersion = 170000

// lookAtStandbys looks at what a promotion would leave of the slot. Nothing is
// said where no standby is.
func (d *databaseDoctor) lookAtStandbys(ctx context.Context) {
	s, err := slot.LookAtStandbys(ctx, d.conn)
	switch {
	case err != nil:
		d.unknown("standbys", plain(err))
		return
	case s.Connected == 0 && len(s.Slots) == 0 && len(s.Waited) == 0:
		return
	}
	if d.server.Version < failoverVersion {
		d.warn("standbys", fmt.Sprintf("%d connected", s.Connected),
			"before PostgreSQL 17 a standby keeps no copy of the slot: after a promotion the relay makes a new one and publishes what is missing from the outbox table", "")
		return
	}
	d.ok("standbys", fmt.Sprintf("%d connected", s.Connected), "one of them goes on when this server is lost")
	d.lookAtCopies(ctx, s)
	d.lookAtFeedback(s)
	d.lookAtWaiting(s)
}

// lookAtCopies asks whether standbys can keep a copy of the slot.
func (d *databaseDoctor) lookAtCopies(ctx context.Context, s slot.Standbys) {
	if d.slot.Exists && !d.slot.Failover {
		d.warn("failover of slot "+d.cfg.Slot, "off", "no standby keeps a copy of the slot: after a promotion the relay makes a new one and publishes what is missing from the outbox table",
			`while no relay runs, on a replication connection: ALTER_REPLICATION_SLOT "`+d.cfg.Slot+`" (FAILOVER true)`)
	} else if d.slot.Exists {
		d.ok("failover of slot "+d.cfg.Slot, "on", "a standby may keep a copy of the slot, from which the relay goes on after a promotion")
	}
	const name = "primary_slot_name"
	if without := s.Connected - len(s.Slots); without > 0 {
		d.warn(name, fmt.Sprintf("%d of %d standbys without a physical slot", without, s.Connected), "a standby that streams without one keeps no copy of logical slots",
			"make one here (SELECT pg_create_physical_replication_slot('NAME')) and set primary_slot_name = 'NAME' on the standby")
	} else {
		d.ok(name, or(strings.Join(s.Slots, ", "), "none is streaming"), "a standby that streams without a physical slot keeps no copy of logical slots")
	}
	// A setting of the standby, which its primary does not know.
	if !d.askStandbys(ctx) {
		d.unknown(syncSlots, "it is a setting of the standby, which is not among the hosts of --database-url; there it has to be on, with dbname in primary_conninfo, "+
			"and this has to give true: SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '"+d.cfg.Slot+"'")
	}
}

const syncSlots = "sync_replication_slots"

// askStandbys asks the hosts of the URL that are standbys what only they know.
// It is false where there is none.
func (d *databaseDoctor) askStandbys(ctx context.Context) (asked bool) {
	cfg, err := d.cfg.postgres(d.cfg.DatabaseURL, "doctor")
	if err != nil {
		return false // said already
	}
	all, starts := ways(cfg)
	for i, start := range starts {
		end := len(all)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		one := cfg.Copy()
		one.ValidateConnect = nil // a standby is welcome here
		follow(one, all[start:end])
		asked = d.askStandby(ctx, one) || asked
	}
	return asked
}

func (d *databaseDoctor) askStandby(ctx context.Context, cfg *pgx.ConnConfig) bool {
	name := fmt.Sprintf("%s at %s:%d", syncSlots, cfg.Host, cfg.Port)
	const why = "only a standby that synchronises slots has one from which the relay goes on after a promotion"
	conn, err := openSQL(ctx, cfg)
	if err != nil {
		d.unknown(name, plain(err))
		return true
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
	c, err := slot.LookAtCopy(ctx, conn, d.cfg.Slot)
	switch {
	case err != nil:
		d.unknown(name, plain(err))
	case !c.InRecovery:
		return false
	case !c.Synchronises:
		d.warn(name, "off", why, "ALTER SYSTEM SET "+syncSlots+" = on; SELECT pg_reload_conf(); -- on that standby, with dbname in its primary_conninfo")
	case !c.Kept && c.Exists:
		d.warn(name, "on, the copy of slot "+d.cfg.Slot+" is temporary", "it is lost at a promotion; it becomes permanent once the slot has moved on, about half a minute after a relay runs; "+
			"where transactions overlap without a gap, only once one that changes the catalogue has committed too, such as autovacuum's ANALYZE",
			"let the relay run, set hot_standby_feedback = on on that standby, and ANALYZE any table of the relay's database")
	case !c.Kept:
		d.warn(name, "on, without a copy of slot "+d.cfg.Slot, why, "see the standby's log; it needs dbname in primary_conninfo, primary_slot_name and hot_standby_feedback = on, and failover of the slot on the primary")
	default:
		d.ok(name, "on, with a copy of slot "+d.cfg.Slot, why)
	}
	return true
}

func (d *databaseDoctor) lookAtFeedback(s slot.Standbys) {
	const name, why = "hot_standby_feedback", "without it this server may vacuum away what the standby's copy of the slot needs, and the copy is lost"
	switch {
	case len(s.WithoutFeedback) > 0:
		d.warn(name, "off behind slot "+strings.Join(s.WithoutFeedback, ", "), why, "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf(); -- on the standby")
	case len(s.Slots) > 0:
		d.ok(name, "on", why)
	}
}

// lookAtWaiting asks whether the relay can get ahead of the standbys.
func (d *databaseDoctor) lookAtWaiting(s slot.Standbys) {
	const name, fix = "synchronized_standby_slots", "; SELECT pg_reload_conf(); -- as a superuser"
	const why = "the relay may publish events that a standby has not received, and when that one is promoted the new primary never had them: they are listed as a gap of kind phantom"
	switch {
	case len(s.Waited) == 0:
		names := or(strings.Join(s.Slots, ", "), "NAME")
		d.warn(name, "none", why, "ALTER SYSTEM SET "+name+" = '"+names+"'"+fix)
	case len(s.WaitedFor) < len(s.Waited):
		d.warn(name, strings.Join(s.Waited, ", "), fmt.Sprintf("%d of them stream nothing, and the relay gets no event before they have it", len(s.Waited)-len(s.WaitedFor)),
			"start the standby, or ALTER SYSTEM SET "+name+" = '"+strings.Join(s.WaitedFor, ", ")+"'"+fix)
	default:
		d.ok(name, strings.Join(s.Waited, ", "), "no event reaches the relay before these standbys have it")
	}
}
