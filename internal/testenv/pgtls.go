package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// A PGTLS says how a PostgreSQL server does TLS.
type PGTLS struct {
	// Server is its certificate and key.
	Server Pair
	// ClientCA holds the certificates that sign clients'. Empty means that
	// no client can show one.
	ClientCA string
}

// SetTLS changes certificates of a running server that was started with TLS.
// New connections see them a moment later.
func (p *Postgres) SetTLS(t PGTLS) error {
	if err := t.install(p.DataDir(), p.who); err != nil {
		return err
	}
	r := p.current()
	if r == nil {
		return p.explain("reload", errors.New("it is not running"))
	}
	r.id.signal(syscall.SIGHUP)
	return nil
}

// install copies the files to the data folder: the server wants to own its
// key, and may not be able to reach ours.
func (t *PGTLS) install(dataDir string, who account) error {
	files := map[string]string{"server.crt": t.Server.CertFile, "server.key": t.Server.KeyFile}
	if t.ClientCA != "" {
		files["root.crt"] = t.ClientCA
	}
	for name, from := range files {
		text, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("read a certificate: %w", err)
		}
		if err := writeOwned(filepath.Join(dataDir, name), string(text), who); err != nil {
			return err
		}
	}
	return nil
}

func (t *PGTLS) settings() map[string]string {
	s := map[string]string{"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
	if t.ClientCA != "" {
		s["ssl_ca_file"] = "root.crt"
	}
	return s
}
