package walrelay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/retention"
)

// muchInDefault is more than what a default partition holds by chance, and what
// is looked through while its writers wait.
const muchInDefault = 64 << 20

// lookAtParts looks at the partitions that a relay makes and drops.
func (d *databaseDoctor) lookAtParts(ctx context.Context) {
	list, err := retention.Look(ctx, d.conn, d.cfg.routerTables())
	if err != nil {
		d.unknown("partitions", plain(err))
		return
	}
	for i := range list {
		p := &list[i]
		name := "table " + p.Table.Schema + "." + p.Table.Name + ", partitions"
		full := pgx.Identifier{p.Table.Schema, p.Table.Name}.Sanitize()
		value := "none for now"
		if !p.Until.IsZero() {
			value = "made until " + p.Until.UTC().Format(time.RFC3339)
		}
		if p.Default != "" {
			value += ", default partition of " + bytesOf(p.DefaultBytes)
		}
		switch {
		case !p.May:
			d.warn(name, value, "the relay may neither make partitions ahead nor drop old ones: rows will go into the default partition, and nothing but that one is cleaned up",
				"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "+pgx.Identifier{p.Table.Schema}.Sanitize()+" TO "+pgx.Identifier{d.server.User}.Sanitize()+"; -- as the owner of table "+full)
		case len(p.Foreign) > 0:
			var fix []string
			for _, part := range p.Foreign {
				fix = append(fix, "ALTER TABLE "+part+" OWNER TO "+p.Owner+";")
			}
			d.warn(name, value, strings.Join(p.Foreign, ", ")+" do not belong to "+p.Owner+", with whose rights partitions are made and dropped, so that this fails", strings.Join(fix, " ")+" -- as a superuser")
		case p.Default == "":
			d.warn(name, value, "there is no default partition: an insert for which no partition is there fails, and with it the service's transaction", "walrelay migrate")
		case p.Until.IsZero():
			d.warn(name, value, "what is written now goes into the default partition, where rows are deleted one by one", "start walrelay run, or walrelay migrate")
		case p.DefaultBytes > muchInDefault:
			d.warn(name, value, fmt.Sprintf("the default partition holds more than %s: no relay looks through that much to make another partition, while those who write to it wait", bytesOf(muchInDefault)),
				"nothing as long as partitions are made until then; its rows are deleted when they are old. Or walrelay migrate --partitioned, when writers may wait")
		default:
			d.ok(name, value, "the relay makes them ahead and drops them when all they hold is old and proven to be stored")
		}
	}
}
