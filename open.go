package walrelay

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// open makes the connections, sees that everything is in place, and takes the
// slot. From then on the relay is the only one that delivers.
func (s *session) open(ctx context.Context) error {
	var err error
	if s.router, err = newRouter(s.cfg); err != nil {
		return err
	}
	if err := s.readSignKey(); err != nil {
		return err
	}
	s.makeStreams()
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.judgeHistory(ctx); err != nil {
		return err
	}
	if err := s.checkPublication(ctx); err != nil {
		return err
	}
	info, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	if err := s.prepareSlot(ctx, info); err != nil {
		return err
	}
	return s.repl.Start(ctx, witness.AdoptedAt(s.epochs))
}

func (s *session) connect(ctx context.Context) error {
	sqlCfg, err := s.cfg.postgres(s.cfg.DatabaseURL, roleSQL)
	if err != nil {
		return err
	}
	s.r.turn(sqlCfg)
	conn, err := openSQL(ctx, sqlCfg)
	if err != nil {
		return err
	}
	s.sql = &sqlConn{life: s.life, conn: conn}
	server, err := checkServer(ctx, conn, s.cfg)
	if err != nil {
		return err
	}
	listenCfg, err := s.cfg.postgres(s.cfg.DatabaseURL, "listen")
	if err != nil {
		return err
	}
	s.r.turn(listenCfg)
	if s.listen, err = openSQL(ctx, listenCfg); err != nil {
		return err
	}
	replCfg, err := s.cfg.postgres(s.cfg.ReplicationURL, "slot")
	if err != nil {
		return err
	}
	s.r.turn(replCfg)
	s.repl, err = slot.Connect(ctx, slot.Config{
		Postgres: replicationConfig(replCfg), Slot: s.cfg.Slot, Publication: s.cfg.Publication, Silence: s.cfg.Silence,
		Notice: s.notice,
	})
	if refused := slot.Refusal(err, slot.ForReplication, server); refused != nil {
		return libpq.Explain(refused)
	}
	return s.checkSameServer(ctx)
}

// notice is told what the server says beside the data.
func (s *session) notice(n *pgconn.PgError) {
	s.log.Warn("PostgreSQL says", slog.String("severity", n.Severity), slog.String("message", n.Message), slog.String("sqlstate", n.Code))
	if slot.IsLostWAL(n) {
		// The reader is stopped before it takes another row.
		s.fail(&slot.MisfitError{
			Object: "publication " + strconv.Quote(s.cfg.Publication), Problem: "could not be loaded by the server: " + n.Message,
			Fix: "make it again with walrelay migrate; rows written meanwhile may have passed unseen",
		})
	}
}

// inspect looks at the slot; one that exists must be of the right kind and not
// another's.
func (s *session) inspect(ctx context.Context) (slot.Info, error) {
	var info slot.Info
	err := s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) (err error) {
		info, err = slot.Inspect(ctx, q, s.cfg.Slot)
		if err != nil {
			return err
		}
		var database string
		if err := q.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
			return fmt.Errorf("ask for the database's name: %w", err)
		}
		return info.Check(s.cfg.Slot, database)
	})
	switch {
	case err != nil:
		return info, err
	case info.Active && info.HolderPID != int(s.repl.Server().BackendPID):
		return info, &slot.InUseError{Slot: s.cfg.Slot, PID: info.HolderPID, Application: info.HolderName, Since: info.HolderSince}
	}
	return info, nil
}

// checkPublication sees that the outbox tables are covered, and maps their
// partitions where those come under their own names.
func (s *session) checkPublication(ctx context.Context) error {
	return s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) (err error) {
		// Before it is checked, so that no later change goes unnoticed.
		if s.published, err = slot.PublicationVersion(ctx, q, s.cfg.Publication); err != nil {
			return err
		}
		if s.leaves, err = checkTables(ctx, q, s.cfg); err != nil {
			return err
		}
		for _, t := range s.cfg.Tables {
			if _, err := checkColumns(ctx, q, s.cfg, s.router, t); err != nil {
				return err
			}
		}
		if !s.leaves {
			return nil
		}
		return mapPartitions(ctx, q, s.cfg, s.router)
	})
}

// judgeHistory compares the database with the epochs that were noted in it.
func (s *session) judgeHistory(ctx context.Context) error {
	return s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) error {
		epochs, err := witness.Epochs(ctx, q, s.cfg.Schema, s.cfg.Source)
		if err != nil {
			return err
		}
		judgement, switchAt, err := witness.Judge(epochs, s.identity())
		if err != nil {
			return err
		}
		switch judgement {
		case witness.First:
			server := s.repl.Server()
			first := witness.Epoch{Number: 1, SystemID: server.SystemID, Timeline: server.Timeline, FirstLSN: server.WALEnd}
			s.epoch, s.epochs = 1, []witness.Epoch{first}
			return witness.BeginEpoch(ctx, q, s.cfg.Schema, s.cfg.Source, first, "first start", s.id.String())
		case witness.Promoted:
			// It is written when the session is, which needs the slot.
			server, last := s.repl.Server(), epochs[len(epochs)-1]
			s.begins = &witness.Epoch{Number: last.Number + 1, SystemID: server.SystemID, Timeline: server.Timeline, FirstLSN: switchAt}
			s.epoch, s.epochs = s.begins.Number, append(epochs, *s.begins)
			s.log.WarnContext(ctx, "the database was promoted: a new epoch begins where its timeline does", slog.Uint64("epoch", uint64(s.epoch)),
				slog.Uint64("timeline", uint64(server.Timeline)), slog.String("switch_point", switchAt.String()))
		case witness.Same:
			s.epoch, s.epochs = epochs[len(epochs)-1].Number, epochs
		}
		return nil
	})
}

func (s *session) identity() witness.Identity {
	server := s.repl.Server()
	return witness.Identity{SystemID: server.SystemID, Timeline: server.Timeline, WALEnd: server.WALEnd, History: server.TimelineHistory}
}

// position is the first one of a commit LSN, in the epoch that it belongs to.
func (s *session) position(commit envelope.LSN) envelope.Position {
	return envelope.Position{Epoch: witness.EpochOf(s.epochs, commit), Commit: commit}
}

// take writes this session into the witness, so that an earlier one can write
// nothing any more, and gives what was there.
func (s *session) take(ctx context.Context) (map[string]dedup.Known, error) {
	if s.taken != nil {
		return s.taken, nil
	}
	host, _ := os.Hostname() // a name for people; empty does no harm
	known := map[string]dedup.Known{}
	err := s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) error {
		found, err := witness.Take(ctx, q, witness.Taking{
			Schema: s.cfg.Schema, Source: s.cfg.Source, Slot: s.cfg.Slot, Session: s.id, Identity: s.identity(), Epoch: s.epoch, Begins: s.begins, Host: host, PID: os.Getpid(),
		})
		if err != nil {
			return err
		}
		// A session that has started has written how far the streams were.
		s.stranger = len(found.Streams) == 0
		for name, st := range found.Streams {
			known[name] = dedup.Known{
				Created: st.Created, LastSeq: st.LastSeq, Position: st.Position, MsgID: st.MsgID, From: st.From, Epoch: st.Epoch, Asides: st.Asides,
				// What this database remembers it also had.
				Settled: s.position(found.ConfirmedLSN),
			}
		}
		if hash := s.router.Hash(); found.Exists && found.RoutesHash != "" && found.RoutesHash != hash {
			s.log.WarnContext(ctx, "tables, columns or routes differ from those of the last run",
				slog.Any("gone", without(found.Routes, routeLines(s.cfg))), slog.Any("new", without(routeLines(s.cfg), found.Routes)))
		}
		return nil
	})
	if err == nil {
		s.taken, s.begins = known, nil
	}
	return known, err
}

// write brings the witness up to date.
func (s *session) write(ctx context.Context, confirmed envelope.LSN, streams map[string]dedup.Known) error {
	states, now := make(map[string]witness.StreamState, len(streams)), time.Now().UTC()
	for name, k := range streams {
		states[name] = witness.StreamState{At: now, Created: k.Created, LastSeq: k.LastSeq, Position: k.Position, MsgID: k.MsgID, From: k.From, Epoch: s.epoch, Asides: s.asides.Load() > 0}
	}
	return s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) error {
		return witness.Write(ctx, q, witness.Writing{
			Schema: s.cfg.Schema, Source: s.cfg.Source, Session: s.id, ConfirmedLSN: confirmed, RoutesHash: s.router.Hash(), Routes: routeLines(s.cfg), Streams: states,
		})
	})
}
