package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// A23, I1: a partitioned outbox, published by its root's name or by its
// partitions' own; partitions come, are detached and go while the relay runs and
// while it does not.
func TestA23APartitionedOutboxInBothPublicationModes(t *testing.T) {
	t.Parallel()
	for _, viaRoot := range []bool{true, false} {
		t.Run(fmt.Sprintf("via root %v", viaRoot), func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{})
			w.Exec(`CREATE TABLE public.events (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
					event_type text NOT NULL, payload jsonb NOT NULL, day date NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
					seq bigint NOT NULL DEFAULT nextval('walrelay.outbox_seq_seq'), PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
				CREATE TABLE public.events_1 PARTITION OF public.events FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');
				CREATE TABLE public.events_rest PARTITION OF public.events DEFAULT;
				CREATE TRIGGER e2e_note AFTER INSERT ON public.events FOR EACH ROW EXECUTE FUNCTION e2e.note('public.events')`)
			w.Exec(fmt.Sprintf(`ALTER PUBLICATION %q SET TABLE public.events; ALTER PUBLICATION %[1]q SET (publish_via_partition_root = %v)`, w.Source, viaRoot))
			place := func(day string, n int) {
				w.Exec(`INSERT INTO public.events (aggregate_type, aggregate_id, event_type, payload, day)
					SELECT 'order', 'a', 'placed', jsonb_build_object('i', i), $1::date FROM generate_series(1, $2::int) i`, day, n)
			}
			flags := []string{"--tables", `[{name: public.events, columns: {id: id, xid: xid, seq: seq}}]`}
			relay := w.Start(flags...)
			place("2026-01-01", 3)
			place("2026-05-05", 2) // the default partition
			w.Stored(5)

			// A partition that is made while the relay runs.
			w.Exec(`CREATE TABLE public.events_2 PARTITION OF public.events FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')`)
			place("2026-01-02", 4)
			w.Stored(9)
			// One that is detached and dropped: no event.
			w.Exec(`ALTER TABLE public.events DETACH PARTITION public.events_1; DROP TABLE public.events_1`)
			place("2026-01-02", 1)
			w.Stored(10)

			w.Check() // and all of it is confirmed

			// The same while no relay runs: what was written before the end of a
			// partition is an event all the same.
			relay.Kill()
			w.Exec(`CREATE TABLE public.events_3 PARTITION OF public.events FOR VALUES FROM ('2026-01-03') TO ('2026-01-04')`)
			place("2026-01-03", 2)
			if viaRoot {
				w.Exec(`ALTER TABLE public.events DETACH PARTITION public.events_3; DROP TABLE public.events_3`)
				place("2026-01-02", 1)
				w.Start(flags...)
				w.Stored(13)
				w.Check()
				return
			}
			place("2026-01-02", 1)
			relay = w.Start(flags...)
			w.Stored(13)
			w.Check()

			// By its own name a partition that is gone cannot be told from another
			// table: that is said, and nothing is lost in silence.
			relay.Kill()
			w.Exec(`CREATE TABLE public.events_4 PARTITION OF public.events FOR VALUES FROM ('2026-01-04') TO ('2026-01-05')`)
			place("2026-01-04", 1)
			w.Exec(`ALTER TABLE public.events DETACH PARTITION public.events_4; DROP TABLE public.events_4`)
			relay = w.Start(flags...)
			reason := relay.Await("halted", fixture.Patience)
			if !strings.Contains(reason, `"public"."events_4"`) || !strings.Contains(reason, "publish_via_partition_root") {
				t.Errorf("the relay halts with %q, want the partition's name and the fix", reason)
			}
		})
	}
}
