package faults_test

import (
	"context"
	"fmt"

	"github.com/walrelay/walrelay/e2e/fixture"
)

func slotFaults() []fault {
	return []fault{
		{name: "slot dropped", loses: true, fits: []kind{single}, on: []string{"slot"}, inject: onSlot(`SELECT pg_drop_replication_slot($1)`)},
		{
			name: "slot made again", loses: true, fits: []kind{single}, on: []string{"slot"},
			inject: onSlot(`SELECT pg_drop_replication_slot($1), pg_create_logical_replication_slot($1, 'pgoutput')`),
		},
		{name: "slot advanced", loses: true, fits: []kind{single}, on: []string{"slot"}, inject: onSlot(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`)},
		{name: "slot invalidated", loses: true, fits: []kind{single}, on: []string{"slot", "relay"}, inject: invalidate, mend: validate},
	}
}

// onSlot takes the slot from the relay and does something to it.
func onSlot(statement string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		w := s.now()
		return w.Hands(ctx, func() error {
			return s.persist(ctx, func(ctx context.Context) error {
				if _, err := w.Pool.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1 AND active`, w.Source); err != nil {
					return err
				}
				_, err := w.Pool.Exec(ctx, statement, w.Source)
				return err
			})
		})
	}
}

// invalidate has the server give up the slot of a relay that is down.
func invalidate(ctx context.Context, s *stage) error {
	s.withRelay((*fixture.Relay).Kill)
	w := s.now()
	return w.Hands(ctx, func() error {
		return s.persist(ctx, func(ctx context.Context) error {
			for _, statement := range []string{
				`ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'`, `SELECT pg_reload_conf()`,
				`SELECT pg_logical_emit_message(false, 'drill', 'x'), pg_switch_wal()`, `CHECKPOINT`,
				`SELECT pg_logical_emit_message(false, 'drill', 'x'), pg_switch_wal()`, `CHECKPOINT`,
			} {
				if _, err := w.Pool.Exec(ctx, statement); err != nil {
					return err
				}
			}
			var status string
			err := w.Pool.QueryRow(ctx, `SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = $1`, w.Source).Scan(&status)
			if err == nil && status != "lost" {
				err = fmt.Errorf("the slot's wal_status is %q, want lost", status)
			}
			return err
		})
	})
}

// validate takes the limit back and starts the relay again.
func validate(ctx context.Context, s *stage) error {
	err := s.persist(ctx, func(ctx context.Context) error {
		for _, statement := range []string{`ALTER SYSTEM RESET max_slot_wal_keep_size`, `SELECT pg_reload_conf()`} {
			if _, err := s.now().Pool.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	s.startRelay()
	return err
}

func publicationFaults() []fault {
	const published = `WITH (publish = 'insert', publish_via_partition_root = true)`
	return []fault{
		{
			name: "publication dropped", loses: true, fits: []kind{single}, on: []string{"publication"},
			inject: onPublication(`DROP PUBLICATION IF EXISTS %q`),
			mend:   onPublication(`DROP PUBLICATION IF EXISTS %q; CREATE PUBLICATION %[1]q FOR TABLE walrelay.outbox, public.bills ` + published),
		},
		{
			name: "publication made again", loses: true, fits: []kind{single}, on: []string{"publication"},
			inject: onPublication(`DROP PUBLICATION IF EXISTS %q; CREATE PUBLICATION %[1]q FOR TABLE walrelay.outbox, public.bills ` + published),
		},
		{
			name: "table taken out", loses: true, fits: []kind{single}, on: []string{"publication"},
			inject: onPublication(`ALTER PUBLICATION %q SET TABLE public.bills`),
			mend:   onPublication(`ALTER PUBLICATION %q SET TABLE walrelay.outbox, public.bills`),
		},
	}
}

// onPublication runs statements that may be repeated.
func onPublication(statements string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		w := s.now()
		return s.persist(ctx, func(ctx context.Context) error {
			conn, err := w.Pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			_, err = conn.Conn().PgConn().Exec(ctx, fmt.Sprintf(statements, w.Source)).ReadAll()
			return err
		})
	}
}
