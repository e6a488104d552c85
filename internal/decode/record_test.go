package decode_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

var record = flag.Bool("record", false, "write what the servers send to testdata")

// marker is the prefix of the logical message that ends a step.
const marker = "end of step"

// recordPatience bounds one scenario.
const recordPatience = time.Minute

// A16 A17 A18 A20 A21 A22 A23 A25 A26 A27: on real servers of both versions.
func TestServersSendWhatIsRecorded(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			server := envtest.Postgres(t, testenv.PGConfig{Version: version, Settings: map[string]string{
				"max_prepared_transactions": "5",
				// A vacuum or analyze in between would have relations described anew.
				"autovacuum": "off",
			}})
			for _, s := range scenarios() {
				t.Run(s.name, func(t *testing.T) {
					got := play(t, server, s)
					if *record {
						head := fmt.Sprintf("What pgoutput of PostgreSQL %d sent; options: %s.", version, strings.Join(pgoutputOptions(s), ", "))
						writeFile(t, fixturePath(version, s.name), got.format(head))
						return
					}
					checkGolden(t, s.name, golden(t, got))
				})
			}
		})
	}
}

func pgoutputOptions(s scenario) []string {
	options := []string{`proto_version '1'`, `publication_names 'p'`}
	// The marker is a logical message.
	return slices.Compact(append(append(options, s.options...), `messages 'true'`))
}

// play runs a scenario in a database of its own and returns what the slot sent
// for each step.
func play(t *testing.T, server *testenv.Postgres, s scenario) recording {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recordPatience)
	defer cancel()
	if err := server.CreateDatabase(ctx, s.name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	url := server.URL(s.name)
	admin := connect(ctx, t, url, nil)
	execute(ctx, t, admin, step{sql: s.setup})
	publication := s.publication
	if publication == "" {
		publication = "FOR ALL TABLES"
	}
	execute(ctx, t, admin, step{sql: "CREATE PUBLICATION p " + publication})
	sessions := map[int]*pgconn.PgConn{0: admin}
	slot := startSlot(ctx, t, url, s)

	var r recording
	for i, st := range s.steps {
		if sessions[st.session] == nil {
			sessions[st.session] = connect(ctx, t, url, nil)
		}
		execute(ctx, t, sessions[st.session], st)
		if sessions[-1] == nil {
			sessions[-1] = connect(ctx, t, url, nil)
		}
		execute(ctx, t, sessions[-1], step{sql: fmt.Sprintf("SELECT pg_logical_emit_message(true, '%s', '%d')", marker, i)})
		r.steps = append(r.steps, recorded{sql: st.sql, messages: receiveStep(ctx, t, slot)})
	}
	return r
}

func connect(ctx context.Context, t *testing.T, url string, settings map[string]string) *pgconn.PgConn {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(cfg.RuntimeParams, settings)
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	return conn
}

func execute(ctx context.Context, t *testing.T, conn *pgconn.PgConn, s step) {
	t.Helper()
	var err error
	if s.copy != "" {
		_, err = conn.CopyFrom(ctx, strings.NewReader(s.copy), s.sql)
	} else {
		_, err = conn.Exec(ctx, s.sql).ReadAll()
	}
	if err != nil {
		t.Fatalf("%s: %v", s.sql, err)
	}
}

// startSlot makes a slot that ends with its connection and starts to read it,
// with the settings that the relay pins, and so little memory for decoding that
// a few hundred rows are spilled.
func startSlot(ctx context.Context, t *testing.T, url string, s scenario) *pgconn.PgConn {
	t.Helper()
	conn := connect(ctx, t, url, map[string]string{
		"replication": "database", "client_encoding": "UTF8", "bytea_output": "hex", "datestyle": "ISO", "timezone": "UTC",
		"intervalstyle": "postgres", "extra_float_digits": "1", "lc_monetary": "C", "logical_decoding_work_mem": "64kB",
	})
	if _, err := pglogrepl.CreateReplicationSlot(ctx, conn, s.name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true}); err != nil {
		t.Fatalf("create a slot: %v", err)
	}
	err := pglogrepl.StartReplication(ctx, conn, s.name, 0, pglogrepl.StartReplicationOptions{PluginArgs: pgoutputOptions(s)})
	if err != nil {
		t.Fatalf("start replication: %v", err)
	}
	return conn
}

// receiveStep returns the messages up to the marker, without its transaction.
func receiveStep(ctx context.Context, t *testing.T, conn *pgconn.PgConn) [][]byte {
	t.Helper()
	var messages [][]byte
	var d decode.Decoder
	var m decode.Message
	marked := false
	for {
		b := receiveData(ctx, t, conn)
		switch b[0] {
		case 'M':
			if err := d.Decode(b, &m); err != nil {
				t.Fatal(err)
			}
			if m.Prefix == marker {
				marked = true
				messages = messages[:len(messages)-1] // its begin
				continue
			}
		case 'C':
			if marked {
				return messages
			}
		}
		messages = append(messages, slices.Clone(b))
	}
}

// nudge is how long the slot may be silent before it gets a status. On
// PostgreSQL 18 its process was seen asleep for 10 to 30 s in WalSenderWaitForWal
// with sent_lsn behind a flushed commit; a status wakes it.
const nudge = 100 * time.Millisecond

// receiveData returns the next message of pgoutput.
func receiveData(ctx context.Context, t *testing.T, conn *pgconn.PgConn) []byte {
	t.Helper()
	for {
		waiting, cancel := context.WithTimeout(ctx, nudge)
		message, err := conn.ReceiveMessage(waiting)
		cancel()
		if pgconn.Timeout(err) && ctx.Err() == nil {
			// All positions are zero, which confirms nothing.
			err = pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{})
			if err == nil {
				continue
			}
		}
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		switch message := message.(type) {
		case *pgproto3.CopyData:
			if message.Data[0] == pglogrepl.XLogDataByteID {
				return message.Data[1+8+8+8:]
			}
		case *pgproto3.ErrorResponse:
			t.Fatalf("the server ended the stream: %s %s", message.Code, message.Message)
		}
	}
}
