package walrelay

import (
	"context"
	"fmt"
	"strings"

	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

const (
	// oldXmin is how many transactions a slot may hold back vacuum before it
	// is worth a word: a tenth of autovacuum_freeze_max_age.
	oldXmin = 20_000_000
	// muchWAL is what a slot may retain before it is worth a word.
	muchWAL = 10 << 30
)

// lookAtSlot looks at the slot from outside; it never looks into it.
func (d *databaseDoctor) lookAtSlot(ctx context.Context) {
	name := "slot " + d.cfg.Slot
	info, err := slot.Inspect(ctx, d.conn, d.cfg.Slot)
	if err != nil {
		d.unknown(name, plain(err))
		return
	}
	d.slot = info
	found, err := witness.Read(ctx, d.conn, d.cfg.Schema, d.cfg.Source)
	d.looked = err == nil
	d.witness = found
	if !info.Exists {
		d.lookAtMissingSlot(ctx, name, found)
		return
	}
	if err := info.Check(d.cfg.Slot, d.server.Database); err != nil {
		d.refuse(VerdictFail, name, fmt.Sprintf("%s slot, plugin %s, database %s", info.Type, or(info.Plugin, "none"), or(info.Database, "none")), err)
		return
	}
	if info.WALStatus == "lost" {
		d.broken(name, "lost", brokenSlot(d.cfg.Slot, info, found))
		return
	}
	value := "not held, confirmed LSN " + info.Confirmed.String()
	if info.Active {
		value = fmt.Sprintf("held by pid %d (%s), confirmed LSN %v", info.HolderPID, or(info.HolderName, "without a name"), info.Confirmed)
	}
	if info.Active && !strings.HasPrefix(info.HolderName, "walrelay "+d.cfg.Source+" ") {
		err := &slot.InUseError{Slot: d.cfg.Slot, PID: info.HolderPID, Application: info.HolderName, Since: info.HolderSince}
		d.warn(name, value, err.Error(), "if it is no relay of this source, give each its own slot (--slot)")
	} else {
		d.ok(name, value, "the server keeps what the relay has not confirmed")
	}
	d.lookAtRetained(info)
	err = slot.CheckAge(ctx, d.conn, d.cfg.Publication, d.cfg.Slot)
	if err != nil {
		d.refuse(VerdictUnknown, "publication "+d.cfg.Publication, "perhaps younger than the slot", err)
	} else {
		d.ok("publication "+d.cfg.Publication, "older than the slot", "PostgreSQL decodes a change with the publication as it was then")
	}
}

func (d *databaseDoctor) lookAtRetained(info slot.Info) {
	value := bytesOf(info.RetainedBytes) + " retained, WAL " + info.WALStatus
	switch {
	case info.WALStatus == "unreserved":
		d.warn("WAL of the slot", value, "the server may remove it at any moment: then the slot is lost, and events with it",
			"let the relay catch up, or ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf(); -- as a superuser")
	case info.RetainedBytes > muchWAL:
		d.warn("WAL of the slot", value, "the server keeps all of it for the relay, until its disk is full", "start the relay, or see what it waits for with walrelay status")
	case info.SafeBytes >= 0 && info.SafeBytes < info.RetainedBytes:
		d.warn("WAL of the slot", value+", "+bytesOf(info.SafeBytes)+" left", "when that is written as well the slot is lost, and events with it",
			"let the relay catch up, or raise max_slot_wal_keep_size")
	default:
		d.ok("WAL of the slot", value, "the server keeps it until the relay has confirmed it")
	}
	if info.CatalogXminAge > oldXmin {
		d.warn("catalog_xmin of the slot", fmt.Sprintf("%d transactions old", info.CatalogXminAge),
			"vacuum keeps dead rows of the system catalogues for the slot: planning gets slow and they grow", "start the relay; if it is there, end the oldest open transaction")
	} else if info.CatalogXminAge >= 0 {
		d.ok("catalog_xmin of the slot", fmt.Sprintf("%d transactions old", info.CatalogXminAge), "vacuum keeps dead rows of the system catalogues for the slot")
	}
}

// broken tells of a slot that is a gap: run heals it, unless it is told to halt.
func (d *databaseDoctor) broken(name, value string, halt *HaltError) {
	if d.cfg.OnGap == GapHalt {
		d.refuse(VerdictFail, name, value, halt)
		return
	}
	d.warn(name, value, halt.Object+" "+halt.Problem, "start walrelay run: it makes the slot again and publishes what is missing from the outbox table, as far as heal_limit and heal_age allow")
}

// lookAtMissingSlot says what its creation will need.
func (d *databaseDoctor) lookAtMissingSlot(ctx context.Context, name string, found witness.Witness) {
	if missing := brokenSlot(d.cfg.Slot, slot.Info{}, found); missing != nil {
		d.broken(name, "none", missing)
	} else {
		d.ok(name, "none yet", "the first start of walrelay run makes it, or walrelay migrate does; what is inserted before is not sent")
	}
	used := fmt.Sprintf("%d of %d in use", d.server.Slots, d.server.MaxSlots)
	d.judge("max_replication_slots", used, d.server.CheckSlots(), "the slot is one more")
	open, err := slot.OpenTransactions(ctx, d.conn)
	switch {
	case err != nil:
		d.unknown("open transactions", plain(err))
	case len(open) == 0:
		d.ok("open transactions", "none that has written", "a slot is made when those that are open then have ended")
	default:
		parts := make([]string, len(open))
		for i, o := range open {
			parts[i] = fmt.Sprintf("pid %d %s for %s", o.PID, o.State, ago(o.For))
			if o.Application != "" {
				parts[i] += " (" + o.Application + ")"
			}
		}
		d.warn("open transactions", strings.Join(parts, ", "), "the creation of the slot waits until they have ended",
			fmt.Sprintf("end them, or if need be: SELECT pg_terminate_backend(%d)", open[0].PID))
	}
}

// lookAtOthers looks for slots of relays that are gone, and for those of other
// relays.
func (d *databaseDoctor) lookAtOthers(ctx context.Context) {
	list, err := slot.Others(ctx, d.conn, d.cfg.Slot)
	if err != nil {
		d.unknown("other slots", plain(err))
		return
	}
	sources, err := witness.Sources(ctx, d.conn, d.cfg.Schema)
	if err != nil {
		sources = nil // the schema's own check has said so
	}
	ours := map[string]string{}
	for _, e := range sources {
		ours[e.Slot] = e.Source
	}
	quiet := true
	for _, o := range list {
		source, known := ours[o.Name]
		value := "not held, " + bytesOf(o.RetainedBytes) + " retained"
		if o.Active {
			value = "held by " + or(o.HolderName, "somebody")
		}
		drop := "SELECT pg_drop_replication_slot('" + o.Name + "'); -- once nobody needs what it has not sent"
		switch {
		case !o.Active && source == d.cfg.Source:
			d.warn("slot "+o.Name, value, fmt.Sprintf("source %q ran with it before, under another name of the slot: what it has not sent is not in slot %q, and the server keeps its WAL", source, d.cfg.Slot),
				"go on with it (--slot "+o.Name+"), or "+drop)
		case !o.Active && known:
			d.warn("slot "+o.Name, value, fmt.Sprintf("it is that of source %q, of which no relay runs: the server keeps its WAL until its disk is full", source), "start that relay, or "+drop)
		case !o.Active:
			d.warn("slot "+o.Name, value, "nobody reads it, and the server keeps its WAL until its disk is full", "if it was that of a relay: "+drop)
		case known || strings.HasPrefix(o.HolderName, "walrelay "):
			d.warn("slot "+o.Name, value, "another relay reads this database: what both have among their tables is published twice",
				"one relay a table: stop one of them, or give each its own tables")
		default:
			continue
		}
		quiet = false
	}
	if quiet {
		d.ok("other slots", fmt.Sprintf("%d, none of a relay", len(list)), "a slot that nobody reads fills the disk, and two relays on a table publish twice")
	}
}
