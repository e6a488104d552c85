package decode_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
)

// Names on the wire end at a zero byte and hold none.
var name = rapid.StringMatching(`[^\x00]{1,12}`)

func drawRelation(t *rapid.T) *decode.Relation {
	return &decode.Relation{
		ID: rapid.Uint32Range(1, 5).Draw(t, "id"), Schema: name.Draw(t, "schema"), Name: name.Draw(t, "table"),
		ReplicaIdentity: rapid.SampledFrom([]byte("dnfi")).Draw(t, "identity"),
		Columns: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) decode.Column {
			return decode.Column{
				Name: name.Draw(t, "column"), TypeOID: rapid.Uint32().Draw(t, "type"),
				TypeMod: rapid.Int32().Draw(t, "modifier"), Key: rapid.Bool().Draw(t, "key"),
			}
		}), 0, 12).Draw(t, "columns"),
	}
}

func drawTuple(t *rapid.T, rel *decode.Relation) decode.Tuple {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) decode.Value {
		v := decode.Value{Kind: decode.ValueKind(rapid.IntRange(int(decode.Null), int(decode.Binary)).Draw(t, "form"))}
		if v.Kind == decode.Text || v.Kind == decode.Binary {
			v.Data = rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		}
		return v
	}), len(rel.Columns), len(rel.Columns)).Draw(t, "row")
}

var drawLSN = rapid.Custom(func(t *rapid.T) envelope.LSN { return envelope.LSN(rapid.Uint64().Draw(t, "lsn")) })

// Within what PostgreSQL can write.
var drawTime = rapid.Custom(func(t *rapid.T) time.Time {
	return time.UnixMicro(rapid.Int64Range(-1e15, 1e16).Draw(t, "time")).UTC()
})

// drawMessage gives a message and its bytes. known are the relations that were
// described so far.
func drawMessage(t *rapid.T, known map[uint32]*decode.Relation, ids []uint32) (decode.Message, wire) {
	kinds := []decode.Kind{
		decode.KindBegin, decode.KindCommit, decode.KindRelation, decode.KindTruncate, decode.KindType, decode.KindOrigin, decode.KindMessage,
	}
	var rel *decode.Relation
	if len(ids) > 0 {
		kinds = append(kinds, decode.KindInsert, decode.KindInsert, decode.KindUpdate, decode.KindDelete)
		rel = known[rapid.SampledFrom(ids).Draw(t, "relation")]
	}
	m := decode.Message{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch m.Kind {
	case decode.KindBegin:
		m.CommitLSN, m.CommitTime, m.XID = drawLSN.Draw(t, "commit"), drawTime.Draw(t, "at"), rapid.Uint32().Draw(t, "xid")
		return m, begin(m.CommitLSN, m.CommitTime, m.XID)
	case decode.KindCommit:
		m.CommitLSN, m.EndLSN, m.CommitTime = drawLSN.Draw(t, "commit"), drawLSN.Draw(t, "end"), drawTime.Draw(t, "at")
		return m, commit(m.CommitLSN, m.EndLSN, m.CommitTime)
	case decode.KindRelation:
		m.Relation = drawRelation(t)
		return m, relation(m.Relation)
	case decode.KindInsert:
		m.Relation, m.Tuple = rel, drawTuple(t, rel)
		return m, insert(rel.ID, m.Tuple)
	case decode.KindUpdate:
		m.Relation, m.Tuple = rel, drawTuple(t, rel)
		return m, update(rel.ID, rapid.SampledFrom([]byte{0, 'K', 'O'}).Draw(t, "old"), drawTuple(t, rel), m.Tuple)
	case decode.KindDelete:
		m.Relation = rel
		return m, remove(rel.ID, rapid.SampledFrom([]byte("KO")).Draw(t, "old"), drawTuple(t, rel))
	case decode.KindTruncate:
		m.Cascade, m.RestartIdentity = rapid.Bool().Draw(t, "cascade"), rapid.Bool().Draw(t, "restart")
		emptied := rapid.SliceOfN(rapid.Uint32Range(1, 6), 0, 4).Draw(t, "ids")
		options := byte(0)
		if m.Cascade {
			options |= 1
		}
		if m.RestartIdentity {
			options |= 2
		}
		for _, id := range emptied {
			if r := known[id]; r != nil {
				m.Relations = append(m.Relations, r)
			}
		}
		return m, truncate(options, emptied...)
	case decode.KindType:
		return m, typeName(rapid.Uint32().Draw(t, "type"), name.Draw(t, "schema"), name.Draw(t, "name"))
	case decode.KindOrigin:
		m.OriginName = name.Draw(t, "origin")
		return m, origin(drawLSN.Draw(t, "lsn"), m.OriginName)
	case decode.KindMessage:
		m.Transactional, m.Prefix = rapid.Bool().Draw(t, "transactional"), name.Draw(t, "prefix")
		m.Content = rapid.SliceOf(rapid.Byte()).Draw(t, "content")
		flags := byte(0)
		if m.Transactional {
			flags = 1
		}
		return m, logical(flags, drawLSN.Draw(t, "lsn"), m.Prefix, m.Content)
	}
	t.Fatalf("no encoder for %v", m.Kind)
	return m, nil
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d decode.Decoder
		var got decode.Message
		known := map[uint32]*decode.Relation{}
		var ids []uint32
		generation := uint64(0)
		for range rapid.IntRange(1, 30).Draw(t, "messages") {
			want, b := drawMessage(t, known, ids)
			if want.Kind == decode.KindRelation {
				generation++
				want.Relation.Generation = generation
				if known[want.Relation.ID] == nil {
					ids = append(ids, want.Relation.ID)
				}
				known[want.Relation.ID] = want.Relation
			}
			if err := d.Decode(b, &got); err != nil {
				t.Fatalf("Decode(%q): %v", []byte(b), err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("Decode(%q) (-want +got):\n%s", []byte(b), diff)
			}
		}
	})
}
