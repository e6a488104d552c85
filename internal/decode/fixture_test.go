package decode_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/internal/decode"
)

// The bytes in testdata come from real servers, and the goldens from the bytes:
//
//	go test ./internal/decode -run Record -record   # bytes, one file for each version and scenario
//	go test ./internal/decode -run Golden -update   # what they decode to, one file for each scenario
var updateGoldens = flag.Bool("update", false, "write the goldens from the recorded bytes")

// versions are the servers whose bytes are recorded: the oldest and the newest.
var versions = []int{15, 18}

// A recording is what a server sent for the steps of a scenario.
type recording struct{ steps []recorded }

type recorded struct {
	sql      string
	messages [][]byte
}

func fixturePath(version int, name string) string {
	return filepath.Join("testdata", fmt.Sprintf("pg%d", version), name+".hex")
}

func goldenPath(name string) string { return filepath.Join("testdata", "golden", name+".txt") }

// format writes the SQL of each step as comments and each of its messages as
// one line of hexadecimal digits.
func (r recording) format(head string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", head)
	for _, s := range r.steps {
		fmt.Fprintf(&b, "\n%s", quoteSQL(s.sql))
		for _, m := range s.messages {
			fmt.Fprintf(&b, "%x\n", m)
		}
	}
	return b.Bytes()
}

// quoteSQL puts "> " before each line.
func quoteSQL(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		b.WriteString("> " + strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

func readFixture(tb testing.TB, path string) recording {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v; record it with: go test ./internal/decode -run Record -record", err)
	}
	var r recording
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	inSQL := false
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "> "):
			if !inSQL {
				r.steps = append(r.steps, recorded{})
			}
			inSQL = true
			r.steps[len(r.steps)-1].sql += line[2:] + "\n"
			continue
		default:
			m, err := hex.DecodeString(line)
			if err != nil || len(r.steps) == 0 {
				tb.Fatalf("%s: line %.40q is not a message behind a step: %v", path, line, err)
			}
			last := &r.steps[len(r.steps)-1]
			last.messages = append(last.messages, m)
		}
		inSQL = false
	}
	if err := lines.Err(); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return r
}

// golden decodes a recording and prints what does not differ from server to
// server: names and values, no LSN, no time, no OID made by the server. A
// relation or type that is described again in the same words is left out, for
// that depends on how soon the slot's process hears of a change in the catalog.
func golden(tb testing.TB, r recording) string {
	tb.Helper()
	var b strings.Builder
	var d decode.Decoder
	var m decode.Message
	described := map[uint32]string{}
	for i, s := range r.steps {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(quoteSQL(s.sql))
		for _, bytes := range s.messages {
			if err := d.Decode(bytes, &m); err != nil {
				tb.Fatalf("after %s: Decode(%x): %v", s.sql, bytes, err)
			}
			if m.Kind == decode.KindRelation || m.Kind == decode.KindType {
				id := binary.BigEndian.Uint32(bytes[1:])
				if described[id] == string(bytes) {
					continue
				}
				described[id] = string(bytes)
			}
			printMessage(&b, &m)
		}
	}
	return b.String()
}

func printMessage(b *strings.Builder, m *decode.Message) {
	b.WriteString(m.Kind.String())
	switch m.Kind {
	case decode.KindBegin, decode.KindCommit, decode.KindType:
	case decode.KindRelation:
		fmt.Fprintf(b, " %s, identity %c", m.Relation, m.Relation.ReplicaIdentity)
		for _, c := range m.Relation.Columns {
			oid := "own"
			if c.TypeOID < 16384 {
				oid = fmt.Sprint(c.TypeOID)
			}
			fmt.Fprintf(b, "\n  %s: type %s, modifier %d", c.Name, oid, c.TypeMod)
			if c.Key {
				b.WriteString(", key")
			}
		}
	case decode.KindInsert, decode.KindUpdate, decode.KindDelete:
		fmt.Fprintf(b, " %s", m.Relation)
		for i, v := range m.Tuple {
			fmt.Fprintf(b, "\n  %s: %s", m.Relation.Columns[i].Name, v.Kind)
			switch v.Kind {
			case decode.Null, decode.Unchanged:
			case decode.Text:
				b.WriteString(" " + printData("%q", v.Data))
			case decode.Binary:
				b.WriteString(" " + printData("%x", v.Data))
			}
		}
	case decode.KindTruncate:
		for _, r := range m.Relations {
			fmt.Fprintf(b, " %s", r)
		}
		fmt.Fprintf(b, ", cascade %t, restart identity %t", m.Cascade, m.RestartIdentity)
	case decode.KindOrigin:
		// Its name ends in the database's.
		name, _, _ := strings.Cut(m.OriginName, "_")
		fmt.Fprintf(b, " %s", name)
	case decode.KindMessage:
		fmt.Fprintf(b, " %q, transactional %t: %s", m.Prefix, m.Transactional, printData("%q", m.Content))
	}
	b.WriteString("\n")
}

// printData gives a long value by its length and hash.
func printData(format string, data []byte) string {
	if len(data) > 1200 {
		return fmt.Sprintf("of %d bytes, sha256 %.8x", len(data), sha256.Sum256(data))
	}
	return fmt.Sprintf(format, data)
}

// checkGolden compares what a scenario decoded to with its golden.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(goldenPath(name))
	if err != nil {
		t.Fatalf("%v; write it with: go test ./internal/decode -run Golden -update", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s does not decode to its golden (-want +got):\n%s", name, diff)
	}
}

func TestFixturesDecodeToTheirGolden(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if *updateGoldens {
				writeFile(t, goldenPath(s.name), []byte(golden(t, readFixture(t, fixturePath(versions[0], s.name)))))
			}
			for _, version := range versions {
				checkGolden(t, s.name, golden(t, readFixture(t, fixturePath(version, s.name))))
			}
		})
	}
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
