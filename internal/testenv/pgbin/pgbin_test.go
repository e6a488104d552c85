package pgbin_test

import (
	"strings"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/pgbin"
)

func TestTheDefaultVersionComesFromTheEnvironment(t *testing.T) {
	for value, want := range map[string]int{"": 15, "18": 18} {
		t.Setenv("WALRELAY_TEST_PG", value)
		if got, err := pgbin.DefaultVersion(); got != want || err != nil {
			t.Errorf("with %q: DefaultVersion() = %d, %v, want %d", value, got, err, want)
		}
	}
	t.Setenv("WALRELAY_TEST_PG", "newest")
	if _, err := pgbin.DefaultVersion(); err == nil || !strings.Contains(err.Error(), "WALRELAY_TEST_PG") {
		t.Errorf("with a word: DefaultVersion() = %v, want an error that names the variable", err)
	}
}

func TestAnUnknownVersionIsNotInstalled(t *testing.T) {
	t.Parallel()
	err := pgbin.Install(t.Context(), 9, t.Output())
	if err == nil || !strings.Contains(err.Error(), "PostgreSQL 9 for") {
		t.Errorf("Install(9) = %v, want an error that names the version", err)
	}
}

func TestAnInstalledVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	version, err := pgbin.DefaultVersion()
	if err != nil {
		t.Fatal(err)
	}
	before, ok := pgbin.Find(version)
	if !ok {
		t.Fatalf("PostgreSQL %d is not installed; run `make deps`", version)
	}
	var log strings.Builder
	if err := pgbin.Install(t.Context(), version, &log); err != nil {
		t.Fatalf("Install(%d) = %v", version, err)
	}
	if !strings.Contains(log.String(), before) {
		t.Errorf("Install says %q, want it to name %s", log.String(), before)
	}
}
