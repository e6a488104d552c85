package libpq

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// targets are all attempts that pgx makes for a connection, in order.
func targets(cfg *pgconn.Config) iter.Seq[*pgconn.FallbackConfig] {
	return func(yield func(*pgconn.FallbackConfig) bool) {
		if !yield(&pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}) {
			return
		}
		for _, f := range cfg.Fallbacks {
			if !yield(f) {
				return
			}
		}
	}
}

// checkTLS refuses what pgx would take for less, or for something else, than
// libpq does.
func checkTLS(cfg *pgconn.Config) error {
	mode := Mode(cfg)
	for t := range targets(cfg) {
		if isSocket(t.Host) {
			continue
		}
		switch c := t.TLSConfig; {
		case c == nil && cfg.SSLNegotiation == "direct":
			return fmt.Errorf("sslnegotiation=direct allows no sslmode=%s: use require, verify-ca or verify-full", mode)
		case c != nil && c.RootCAs == nil && (!c.InsecureSkipVerify || c.VerifyPeerCertificate != nil):
			// pgx would trust whatever the system does, and verify-ca would
			// then take any certificate that somebody has bought.
			return fmt.Errorf("sslmode=%s has no certificates to verify with: set sslrootcert to a file of them, or to system for those of this machine", mode)
		}
	}
	return nil
}

// Mode is the sslmode of a configuration as it was parsed; a require that
// verifies, since there is a root certificate, is called verify-ca. It is
// empty for a Unix socket.
func Mode(cfg *pgconn.Config) string {
	if isSocket(cfg.Host) {
		return ""
	}
	plain, secure := cfg.TLSConfig == nil, cfg.TLSConfig != nil
	for _, f := range cfg.Fallbacks {
		if f.Host == cfg.Host && f.Port == cfg.Port {
			plain, secure = plain || f.TLSConfig == nil, secure || f.TLSConfig != nil
		}
	}
	switch {
	case !secure:
		return "disable"
	case plain && cfg.TLSConfig == nil:
		return "allow"
	case plain:
		return "prefer"
	case !cfg.TLSConfig.InsecureSkipVerify:
		return "verify-full"
	case cfg.TLSConfig.VerifyPeerCertificate != nil:
		return "verify-ca"
	}
	return "require"
}

func isSocket(host string) bool {
	network, _ := pgconn.NetworkAddress(host, 0)
	return network == "unix"
}

// Explain adds to the error of a connection that could not be opened what pgx
// leaves out, the mode, and what is likely to help. Any other error stays as
// it is.
func Explain(err error) error {
	failed, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err
	}
	text := failed.Error()
	if _, ok := errors.AsType[*pgconn.PgError](err); ok && strings.Contains(text, "unsupported startup parameter") {
		return fmt.Errorf("%w; this looks like a pooler: give replication a direct address with --replication-url", err)
	}
	mode := Mode(failed.Config)
	if mode == "" {
		return err
	}
	return fmt.Errorf("%w (sslmode=%s)", err, mode)
}
