package envtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Browser starts a headless Chromium for this test.
func Browser(tb testing.TB) *testenv.Browser {
	tb.Helper()
	b, err := Env(tb).StartBrowser(tb.Context())
	if err != nil {
		tb.Fatalf("start a browser: %v", err)
	}
	tb.Cleanup(b.Close) // before the folder goes
	return b
}

// Picture keeps a picture of a page as output of the test: with -artifacts where
// go test says, else in a folder that is named.
func Picture(t *testing.T, tab *testenv.Tab, name string) {
	t.Helper()
	png, err := tab.Picture(t.Context())
	if err != nil {
		t.Fatalf("take a picture: %v", err)
	}
	path := filepath.Join(t.ArtifactDir(), name+".png")
	if err := os.WriteFile(path, png, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("picture: %s", path)
}
