package libpq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Parse reads a URL or key=value pairs, and what they leave open from the PG*
// variables, a service file and a password file. All files are read at each
// call, so that whoever parses before each connect gets what is there now.
//
// The errors name the part or the file and what to do. They repeat nothing
// that could be a secret.
func Parse(conninfo string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(conninfo)
	if err != nil {
		return nil, errors.New(explainParse(conninfo, err))
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.DialFunc = dial
	settings := read(conninfo)
	if err := errors.Join(complete(&cfg.Config), checkTLS(&cfg.Config), checkTarget(&cfg.Config, settings)); err != nil {
		return nil, err
	}
	if cfg.Password != "" {
		if err := checkPassfile(conninfo, cfg.Password, settings); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// explainParse says which part of a string is wrong without repeating any of
// it: what looks like a port may be the rest of a password.
func explainParse(conninfo string, err error) string {
	part := ""
	if text := err.Error(); strings.Contains(text, "`: ") {
		part, _, _ = strings.Cut(text[strings.LastIndex(text, "`: ")+3:], " (")
	}
	if cause := errors.Unwrap(err); cause != nil {
		switch part {
		case "failed to configure TLS", "failed to read service":
			// These name a file, a service or a setting.
			return cause.Error()
		}
	}
	if _, isURL := cutScheme(conninfo); isURL && (part == "failed to parse as URL" || part == "invalid port") {
		return "cannot be read as a URL (" + part + "); write the special characters of the user and the password in percent form " +
			"(@ as %40, : as %3A, / as %2F, # as %23, ? as %3F, % as %25)"
	}
	if part == "" {
		part = "its form is unknown"
	}
	return "cannot be read as a PostgreSQL URL or as key=value pairs: " + part
}

// ours are settings of libpq that say how its own sockets and names behave.
// walrelay has its own for that, so they change nothing here.
var ours = []string{
	"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout", "sslcompression",
	"fallback_application_name", "replication",
}

// unsupported are settings of libpq that would be without effect, or that the
// server would take for one of its own.
var unsupported = []struct{ name, variable, fix string }{
	{"hostaddr", "PGHOSTADDR", "write the address as host"},
	{"oauth_issuer", "", "use a password or a certificate"},
	{"requirepeer", "PGREQUIREPEER", "leave it out; over TCP verify-full proves who the server is"},
	{"scram_client_key", "", "use a password"},
	{"sslcrl", "PGSSLCRL", "leave it out; certificates are not checked for revocation"},
	{"sslcrldir", "PGSSLCRLDIR", "leave it out; certificates are not checked for revocation"},
	{"sslkeylogfile", "", "leave it out"},
}

// complete deals with the settings that pgx takes for the server's.
func complete(cfg *pgconn.Config) error {
	for _, name := range ours {
		delete(cfg.RuntimeParams, name)
	}
	var problems []error
	take := func(name, variable string) string {
		value, ok := cfg.RuntimeParams[name]
		if delete(cfg.RuntimeParams, name); !ok && variable != "" {
			value = os.Getenv(variable)
		}
		return value
	}
	for _, u := range unsupported {
		if take(u.name, u.variable) != "" {
			problems = append(problems, fmt.Errorf("%s is not supported: %s", u.name, u.fix))
		}
	}
	if take("gssencmode", "PGGSSENCMODE") == "require" {
		problems = append(problems, errors.New("gssencmode=require is not supported: use TLS"))
	}
	if mode := take("load_balance_hosts", "PGLOADBALANCEHOSTS"); mode != "" && mode != "disable" {
		problems = append(problems, errors.New("load_balance_hosts is not supported: the hosts are tried in their order"))
	}
	least, err1 := tlsVersion("ssl_min_protocol_version", take("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"))
	most, err2 := tlsVersion("ssl_max_protocol_version", take("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"))
	for t := range targets(cfg) {
		if t.TLSConfig != nil {
			t.TLSConfig.MinVersion, t.TLSConfig.MaxVersion = max(least, tls.VersionTLS12), most
		}
	}
	return errors.Join(append(problems, err1, err2)...)
}

func tlsVersion(name, value string) (uint16, error) {
	versions := map[string]uint16{"": 0, "TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13}
	v, ok := versions[value]
	if !ok {
		return 0, fmt.Errorf("%s: use TLSv1.2 or TLSv1.3", name)
	}
	return v, nil
}

// checkTarget sees to it that the server can be written to: the relay keeps
// its witness in PostgreSQL. Of several hosts it is the primary.
func checkTarget(cfg *pgconn.Config, s source) error {
	switch s.setting("target_session_attrs", "PGTARGETSESSIONATTRS") {
	case "standby", "read-only", "prefer-standby":
		return errors.New("target_session_attrs asks for a standby, to which walrelay cannot write: use primary or read-write")
	}
	if cfg.ValidateConnect == nil && len(hosts(cfg)) > 1 {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return nil
}

// checkPassfile refuses a password from a file that others may read. libpq
// warns, goes on without it, and the server then complains of a missing
// password.
func checkPassfile(conninfo, password string, s source) error {
	path := s.setting("passfile", "PGPASSFILE", ".pgpass")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return nil //nolint:nilerr // without a file the password came from elsewhere
	}
	without, err := pgx.ParseConfig(withoutPassfile(conninfo))
	if err != nil || without.Password == password {
		return nil //nolint:nilerr // it is not the file's
	}
	return fmt.Errorf("password file %s may be read by others, so its password is not used: chmod 0600 %s", path, path)
}

// withoutPassfile adds to a string that no password file is wanted; what comes
// last counts.
func withoutPassfile(conninfo string) string {
	rest, isURL := cutScheme(conninfo)
	if !isURL {
		return conninfo + " passfile=" + os.DevNull
	}
	if at := strings.IndexAny(rest, "@/"); at >= 0 && rest[at] == '@' {
		rest = rest[at+1:]
	}
	if strings.Contains(rest, "?") {
		return conninfo + "&passfile=" + os.DevNull
	}
	return conninfo + "?passfile=" + os.DevNull
}

// hosts are the distinct hosts with their ports, in order.
func hosts(cfg *pgconn.Config) []string {
	var list []string
	for t := range targets(cfg) {
		if name := fmt.Sprintf("%s:%d", t.Host, t.Port); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
