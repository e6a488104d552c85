package pgbin

import (
	"archive/tar"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
)

// archive makes an npm archive of files.
func archive(t *testing.T, files map[string]string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a.tgz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []interface{ Close() error }{w, z, f} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestUnpackingMakesProgramsAndLinks(t *testing.T) {
	t.Parallel()
	to := filepath.Join(t.TempDir(), "native")
	err := unpack(archive(t, map[string]string{
		"package/package.json":            "left out",
		"package/native/bin/postgres":     "program",
		"package/native/lib/libx.so.6.2":  "library",
		"package/native/pg-symlinks.json": `[{"source":"native/lib/libx.so.6.2","target":"native/lib/libx.so"}]`,
	}), to)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "lib", "libx.so")); string(got) != "library" {
		t.Errorf("the link leads to %q, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(to, "bin", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o755 {
		t.Errorf("mode of the program = %o, want 755", got)
	}
	if _, err := os.Stat(filepath.Join(to, "package.json")); !os.IsNotExist(err) {
		t.Errorf("package.json was unpacked: %v", err)
	}
}

func TestAnArchiveCannotWriteOutsideItsFolder(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"file": {"package/native/../../../outside": "x", "package/native/pg-symlinks.json": "[]"},
		"link": {"package/native/pg-symlinks.json": `[{"source":"native/lib/x","target":"native/../../outside"}]`},
	} {
		dir := t.TempDir()
		if err := unpack(archive(t, files), filepath.Join(dir, "a", "native")); err == nil {
			t.Errorf("%s: unpack = nil, want an error", name)
		}
		if _, err := os.Lstat(filepath.Join(dir, "outside")); !os.IsNotExist(err) {
			t.Errorf("%s: it was written: %v", name, err)
		}
	}
}
