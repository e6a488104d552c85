package pgbin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Variables that change where and which PostgreSQL is taken.
const (
	versionVariable = "WALRELAY_TEST_PG"  // major version when none is asked for
	cacheVariable   = "WALRELAY_PG_CACHE" // folder of installed versions
)

// defaultVersion is the oldest that walrelay supports.
const defaultVersion = 15

// DefaultVersion is the major version of PostgreSQL that tests use when they do
// not ask for one: $WALRELAY_TEST_PG, or 15.
func DefaultVersion() (int, error) {
	text := os.Getenv(versionVariable)
	if text == "" {
		return defaultVersion, nil
	}
	version, err := strconv.Atoi(text)
	if err != nil || version <= 0 {
		return 0, fmt.Errorf("%s=%q is not a major version of PostgreSQL; use 15, 16, 17 or 18", versionVariable, text)
	}
	return version, nil
}

// Cache is the folder that holds one folder for each installed version
// of PostgreSQL: $WALRELAY_PG_CACHE, or /var/cache/walrelay/pg for root (whose
// home is closed to the user that the server runs as), or walrelay/pg in the
// user's cache folder.
func Cache() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/walrelay/pg", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w; set %s", err, cacheVariable)
	}
	return filepath.Join(dir, "walrelay", "pg"), nil
}

// Find finds the folder with the programs of a major version of PostgreSQL: in the
// cache, where Debian puts them, or in PATH.
func Find(version int) (binDir string, ok bool) {
	name := strconv.Itoa(version)
	var candidates []string
	if cache, err := Cache(); err == nil {
		candidates = append(candidates, filepath.Join(cache, name, "bin"))
	}
	candidates = append(candidates, filepath.Join("/usr/lib/postgresql", name, "bin"))
	if found, err := exec.LookPath("postgres"); err == nil {
		// initdb lies beside the real file; PATH often has a link to it.
		if file, err := filepath.EvalSymlinks(found); err == nil {
			candidates = append(candidates, filepath.Dir(file))
		}
	}
	for _, dir := range candidates {
		if isVersion(dir, version) {
			return dir, true
		}
	}
	return "", false
}

// versionPatience bounds a question that takes milliseconds.
const versionPatience = 10 * time.Second

// isVersion tells whether the folder has a server of that version that starts,
// and initdb.
func isVersion(binDir string, version int) bool {
	if _, err := os.Stat(filepath.Join(binDir, "initdb")); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionPatience)
	defer cancel()
	text, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").Output()
	if err != nil {
		return false
	}
	// postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	_, rest, found := strings.Cut(string(text), "(PostgreSQL) ")
	return found && strings.HasPrefix(rest, strconv.Itoa(version)+".")
}
