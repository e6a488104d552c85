package testenv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A template is a data folder fresh from initdb, copied for each cluster of its
// version: a copy takes a tenth of the time.
type template struct {
	once sync.Once
	dir  string
	err  error
}

// freshFolder makes dataDir the data folder of a new cluster.
func (e *Env) freshFolder(ctx context.Context, binDir string, version int, dataDir string, who account) error {
	e.base.mu.Lock()
	t := e.base.templates[version]
	if t == nil {
		t = new(template)
		e.base.templates[version] = t
	}
	e.base.mu.Unlock()
	t.once.Do(func() {
		// It outlives the Env of the test that asks first: the root's Close
		// and the helper remove the parent.
		parent, err := os.MkdirTemp(e.base.dir, "template-")
		if err != nil {
			t.err = fmt.Errorf("make a folder for initdb: %w", err)
			return
		}
		if err := os.Chmod(parent, 0o755); err != nil {
			t.err = fmt.Errorf("open the folder for initdb: %w", err)
			return
		}
		t.dir = filepath.Join(parent, "data")
		// For all clusters to come: not to be ended by the first one's test.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		t.err = initdb(ctx, binDir, t.dir, who)
	})
	if t.err != nil {
		return t.err
	}
	if err := copyFolder(t.dir, dataDir, who); err != nil {
		return err
	}
	return renewIdentity(dataDir)
}

func initdb(ctx context.Context, binDir, dataDir string, who account) error {
	if err := makeDataFolder(dataDir, who); err != nil {
		return err
	}
	// Only the C locales exist on a bare machine.
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "initdb"), "--pgdata="+dataDir, "--username=postgres",
		"--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync", "--no-instructions")
	cmd.Dir = dataDir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	who.runAs(cmd)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb in %s: %w: %s", dataDir, err, bytes.TrimSpace(output))
	}
	return nil
}

func makeDataFolder(dataDir string, who account) error {
	// The server refuses a folder that others may read.
	if err := os.Mkdir(dataDir, 0o700); err != nil {
		return fmt.Errorf("make a data folder: %w", err)
	}
	return who.own(dataDir)
}

// copyFolder copies the data folder of a stopped server.
func copyFolder(from, to string, who account) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
			return who.own(target)
		case name == "postmaster.pid":
			return nil
		case d.Type()&fs.ModeSymlink != 0: // a table space or a moved pg_wal
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		return copyFile(path, target, who)
	})
	if err != nil {
		return fmt.Errorf("copy the data folder %s: %w", from, err)
	}
	return nil
}

func copyFile(from, to string, who account) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return who.own(to)
}

// renewIdentity gives a copied cluster a system identifier of its own, as if
// initdb had made it: walrelay tells databases apart by it. The identifier is
// in the control file, under a checksum, and in the head of each WAL segment.
func renewIdentity(dataDir string) error {
	const (
		segmentAt = 24     // place of the identifier in a segment's first page
		longHead  = 0x0002 // flag: this page says it
		maxStruct = 512    // the control file's structure ends before
	)
	control := filepath.Join(dataDir, "global", "pg_control")
	image, err := os.ReadFile(control)
	if err != nil {
		return fmt.Errorf("read the control file: %w", err)
	}
	old := slices.Clone(image[:8])
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	sumAt := -1
	for at := 8; at+4 <= min(maxStruct, len(image)); at += 4 {
		if crc32.Checksum(image[:at], castagnoli) == binary.NativeEndian.Uint32(image[at:]) {
			sumAt = at
			break
		}
	}
	if sumAt < 0 {
		return errors.New("find the checksum of the control file: none matches")
	}
	binary.NativeEndian.PutUint64(image, rand.Uint64()>>1)
	binary.NativeEndian.PutUint32(image[sumAt:], crc32.Checksum(image[:sumAt], castagnoli))
	if err := os.WriteFile(control, image, 0o600); err != nil {
		return fmt.Errorf("write the control file: %w", err)
	}

	segments, err := filepath.Glob(filepath.Join(dataDir, "pg_wal", "0*"))
	if err != nil {
		return fmt.Errorf("list the WAL: %w", err)
	}
	for _, segment := range segments {
		f, err := os.OpenFile(segment, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open the WAL: %w", err)
		}
		head := make([]byte, segmentAt+8)
		_, err = io.ReadFull(f, head)
		if err == nil && binary.NativeEndian.Uint16(head[2:])&longHead != 0 && bytes.Equal(head[segmentAt:], old) {
			_, err = f.WriteAt(image[:8], segmentAt)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("change the WAL segment %s: %w", filepath.Base(segment), err)
		}
	}
	return nil
}

// defaultSettings suit a small, fast, disposable cluster that is crashed on
// purpose but never loses power: fsync only guards against the latter.
func defaultSettings() map[string]string {
	return map[string]string{
		"listen_addresses":           "127.0.0.1",
		"unix_socket_directories":    "",
		"wal_level":                  "logical",
		"max_wal_senders":            "20",
		"max_replication_slots":      "20",
		"max_connections":            "100",
		"shared_buffers":             "32MB",
		"fsync":                      "off",
		"full_page_writes":           "off",
		"dynamic_shared_memory_type": "mmap", // in the data folder, and goes with it
		"timezone":                   "UTC",
		"log_timezone":               "UTC",
		"logging_collector":          "off",
		"log_destination":            "stderr",
		"log_line_prefix":            "%m [%p] %q%u@%d %a ",
		"autovacuum_naptime":         "5min",
	}
}

// configure writes settings to the configuration file, not to the command
// line, so that ALTER SYSTEM is stronger.
func configure(dataDir string, port int, settings map[string]string, hba []string, who account) error {
	all := defaultSettings()
	maps.Copy(all, settings)
	all["port"] = strconv.Itoa(port)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := strings.ReplaceAll(strings.ReplaceAll(all[name], `\`, `\\`), `'`, `''`)
		fmt.Fprintf(&text, "%s = '%s'\n", name, value)
	}
	if err := writeOwned(filepath.Join(dataDir, "walrelay.conf"), text.String(), who); err != nil {
		return err
	}
	main := filepath.Join(dataDir, "postgresql.conf")
	const include = "\ninclude 'walrelay.conf'\n"
	old, err := os.ReadFile(main)
	if err != nil {
		return fmt.Errorf("read the server's configuration: %w", err)
	}
	if !bytes.HasSuffix(old, []byte(include)) {
		if err := writeOwned(main, string(old)+include, who); err != nil {
			return err
		}
	}
	rules := []string{"host all postgres 127.0.0.1/32 trust", "host replication postgres 127.0.0.1/32 trust"}
	if len(hba) == 0 {
		hba = []string{"host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"}
	}
	return writeOwned(filepath.Join(dataDir, "pg_hba.conf"), strings.Join(append(rules, hba...), "\n")+"\n", who)
}

func writeOwned(path, text string, who account) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the server's configuration: %w", err)
	}
	return who.own(path)
}

// makeStandby turns the copy of a primary into its standby. A copied slot would
// be a second one with the same position, which holds WAL for nobody.
func makeStandby(dataDir string, who account) error {
	slots := filepath.Join(dataDir, "pg_replslot")
	if err := os.RemoveAll(slots); err != nil {
		return fmt.Errorf("remove the copied slots: %w", err)
	}
	if err := makeDataFolder(slots, who); err != nil {
		return err
	}
	return writeOwned(filepath.Join(dataDir, "standby.signal"), "", who)
}
