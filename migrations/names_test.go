package migrations_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/migrations"
)

func TestA30OddNamesWork(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			for i, cfg := range []migrations.Config{
				{Schema: "My Schema", Publication: `My"Pub'1`, Tables: []migrations.Table{{Schema: "My Schema", Name: "Out.Box"}, {Schema: "My Schema", Name: "outbox"}}},
				{Schema: `a.b"c'd`, Publication: strings.Repeat("p", 63)},
				{Schema: `a.b"c'd\%s$1`, Publication: "%I", Partitioned: true, PartitionsAhead: 1},
				{Schema: "ключ{schema}", Publication: "SELECT"},
				{Schema: strings.Repeat("s", 63), Publication: "public", Partitioned: true, PartitionsAhead: 2},
			} {
				cfg.Slot = w.name + string(rune('a'+i))
				if i == 0 {
					w.exec(t, `CREATE SCHEMA "My Schema"`, `CREATE TABLE "My Schema"."Out.Box" ("Topic" text, "select" text, "ключ" text)`)
				}
				for range 2 {
					w.mustApply(t, cfg)
				}
				var sql bytes.Buffer
				if err := migrations.Print(&sql, cfg); err != nil {
					t.Fatal(err)
				}
				w.exec(t, sql.String())
				if got := w.text(t, "SELECT count(*)::text FROM pg_publication_tables WHERE pubname = $1", cfg.Publication); i == 0 && got != "2" || i > 0 && got != "1" {
					t.Errorf("publication %q covers %s tables", cfg.Publication, got)
				}
			}
		})
	}
}

func TestA30AMisspeltTableIsReportedWithTheNearest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, `CREATE SCHEMA "Shop"`, `CREATE TABLE "Shop"."OutBox" (id uuid)`)
	cfg := w.config()
	cfg.Tables = []migrations.Table{{Schema: "shop", Name: "outbox"}}
	_, err := w.apply(t, w.url, cfg)
	if err == nil {
		t.Fatal("Apply() = nil, want an error")
	}
	contains(t, "Apply()", err.Error(), `"shop"."outbox"`, `"Shop"."OutBox"`)
}

func TestNamesThatCannotBeAreAllReported(t *testing.T) {
	t.Parallel()
	err := migrations.Print(&bytes.Buffer{}, migrations.Config{Schema: "pg_mine", Slot: "My-Slot", Publication: strings.Repeat("p", 64)})
	if err == nil {
		t.Fatal("Print() = nil, want an error")
	}
	contains(t, "Print()", err.Error(), "pg_mine", "My-Slot", "64 bytes")
}

func TestTablesAreParsedAsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]migrations.Table{
		"orders":                {Schema: "public", Name: "orders"},
		"shop.OutBox":           {Schema: "shop", Name: "OutBox"},
		`"My Schema"."Out.Box"`: {Schema: "My Schema", Name: "Out.Box"},
		`My Schema."a""b"`:      {Schema: "My Schema", Name: `a"b`},
	} {
		if got, err := migrations.ParseTable(text); err != nil || got != want {
			t.Errorf("ParseTable(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a.b.c", `"a`, `"a"b`, "a.", ".a"} {
		if got, err := migrations.ParseTable(text); err == nil {
			t.Errorf("ParseTable(%q) = %v, want an error", text, got)
		}
	}
}
