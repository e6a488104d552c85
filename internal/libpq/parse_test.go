package libpq_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// special is the password of A36.
const special = "p@ss:w/o#r%d?&=+ é'\"\\"

func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every form of libpq opens both connections. A36: the password is the same in
// each.
func TestA36EveryFormReachesTheServer(t *testing.T) {
	p := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"host all relay 127.0.0.1/32 scram-sha-256"}})
	admin := connect(t, p.URL("postgres"))
	exec(t, admin, "CREATE ROLE relay LOGIN REPLICATION PASSWORD '"+strings.ReplaceAll(special, "'", "''")+"'")
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	line := fmt.Sprintf("127.0.0.1:%d:postgres:relay:%s\n", p.Port(), escape.Replace(special))
	passfile := write(t, "pgpass", "# who comes first\nelsewhere:*:*:*:wrong\n"+line, 0o600)
	service := write(t, "services", fmt.Sprintf("[shop]\nhost=127.0.0.1\nport=%d\nuser=relay\ndbname=postgres\nsslmode=disable\npassfile=%s\n", p.Port(), passfile), 0o644)
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".pgpass"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(p.Port())
	quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(special) + "'"
	encoded := "p%40ss%3Aw%2Fo%23r%25d%3F%26%3D%2B%20%C3%A9%27%22%5C"
	for _, c := range []struct {
		name, conninfo string
		env            map[string]string
	}{
		{"URL", "postgres://relay:" + encoded + "@127.0.0.1:" + port + "/postgres", nil},
		{"URL, parameters", "postgresql:///postgres?host=127.0.0.1&port=" + port + "&user=relay&password=" + encoded, nil},
		{"key=value", "host = 127.0.0.1 port=" + port + " user=relay dbname=postgres password=" + quoted, nil},
		{"PGPASSWORD", "postgres://relay@127.0.0.1:" + port + "/postgres", map[string]string{"PGPASSWORD": special}},
		{"all of PG*", "postgres://", map[string]string{
			"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "relay", "PGDATABASE": "postgres", "PGPASSWORD": special, "PGSSLMODE": "disable",
		}},
		{"passfile", "host=127.0.0.1 port=" + port + " user=relay dbname=postgres passfile=" + passfile, nil},
		{"passfile in a URL", "postgres://relay@127.0.0.1:" + port + "/postgres?passfile=" + passfile, nil},
		{"PGPASSFILE", "postgres://relay@127.0.0.1:" + port + "/postgres", map[string]string{"PGPASSFILE": passfile}},
		{"~/.pgpass", "postgres://relay@127.0.0.1:" + port + "/postgres", map[string]string{"HOME": home}},
		{"service", "service=shop", map[string]string{"PGSERVICEFILE": service}},
		{"PGSERVICE", "postgres://", map[string]string{"PGSERVICEFILE": service, "PGSERVICE": "shop"}},
		{"servicefile", "service=shop servicefile=" + service, nil},
		{"settings of libpq's own sockets", "host=127.0.0.1 port=" + port + " user=relay dbname=postgres keepalives=1 keepalives_idle=3 tcp_user_timeout=9 " +
			"gssencmode=disable load_balance_hosts=disable fallback_application_name=x replication=true sslcompression=0 ssl_min_protocol_version=TLSv1.2 password=" + quoted, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			for kind, dial := range dials(t.Context(), c.conninfo, admin) {
				if _, err := dial(); err != nil {
					t.Errorf("%s connection: %v", kind, err)
				}
			}
		})
	}
}

// libpq does not use a password file that others may read.
func TestAPasswordFileThatOthersMayReadIsNotUsed(t *testing.T) {
	loose := write(t, "pgpass", "db:*:*:relay:secret-one\n", 0o640)
	if err := os.Chmod(loose, 0o640); err != nil { // whatever the umask
		t.Fatal(err)
	}
	service := write(t, "services", "[shop]\nhost=db\nuser=relay\npassfile="+loose+"\n", 0o644)
	for _, conninfo := range []string{
		"host=db user=relay passfile=" + loose,
		"postgres://relay@db/shop?passfile=" + loose,
		"postgres://relay@db/shop?sslmode=disable&passfile=" + strings.ReplaceAll(loose, "/", "%2F"),
		"service=shop servicefile=" + service,
		`host=db user=relay passfile='` + loose + `'`,
	} {
		_, err := libpq.Parse(conninfo)
		if err == nil || !strings.Contains(err.Error(), "chmod 0600 "+loose) || strings.Contains(err.Error(), "secret-one") {
			t.Errorf("Parse(%q) = %v, want an error with the fix and without the password", conninfo, err)
		}
	}
	// It does not matter where another password counts, or none of it.
	for _, conninfo := range []string{
		"host=db user=relay password=other passfile=" + loose,
		"postgres://relay:other@db/shop?passfile=" + loose,
		"host=elsewhere user=relay passfile=" + loose,
	} {
		cfg, err := libpq.Parse(conninfo)
		if err != nil || cfg.Password == "secret-one" {
			t.Errorf("Parse(%q) = %v", conninfo, err)
		}
	}
	if err := os.Chmod(loose, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := libpq.Parse("host=db user=relay passfile=" + loose)
	if err != nil || cfg.Password != "secret-one" {
		t.Errorf("Parse after chmod = %v, want the file's password", err)
	}
}

func TestA36WhatCannotBeUsedIsNamedWithoutASecret(t *testing.T) {
	ca := envtest.CA(t, "ours")
	for conninfo, want := range map[string]string{
		"postgres://relay:p%@db/shop":                                                          "write the special characters",
		"postgres://relay:secret:9x@db:port/shop":                                              "write the special characters",
		"host=db password=secret port=x":                                                       "invalid port",
		"host=db password=secret sslmode=verify_full":                                          "sslmode is invalid",
		"host=db password=secret sslmode=verify-full sslrootcert=/nowhere/ca.crt":              "/nowhere/ca.crt",
		"host=db password=secret service=shop servicefile=/nowhere/services":                   "/nowhere/services",
		"host=db password=secret sslmode=verify-ca":                                            "set sslrootcert",
		"host=db password=secret sslmode=require sslcert=/nowhere/c.crt sslkey=/nowhere/c.key": "/nowhere/c.key",
		"host=db password=secret sslmode=require sslcert=/nowhere/c.crt":                       "sslkey",
		"host=db password=secret hostaddr=10.0.0.1":                                            "hostaddr is not supported: write the address as host",
		"host=db password=secret sslcrl=/etc/crl":                                              "sslcrl is not supported",
		"host=db password=secret gssencmode=require":                                           "use TLS",
		"host=a,b password=secret load_balance_hosts=random":                                   "load_balance_hosts is not supported",
		"host=a,b password=secret target_session_attrs=standby":                                "use primary or read-write",
		"postgres://u:secret@a,b/d?target_session_attrs=prefer-standby":                        "use primary or read-write",
		"host=db password=secret ssl_min_protocol_version=SSLv3":                               "use TLSv1.2 or TLSv1.3",
		"host=a,b,c port=1,2 password=secret":                                                  "could not match",
	} {
		_, err := libpq.Parse(conninfo)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want an error with %q", conninfo, err, want)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "p%") {
			t.Errorf("Parse(%q) = %v, which shows a password", conninfo, err)
		}
	}
	t.Setenv("PGSSLCRL", "/etc/crl")
	if _, err := libpq.Parse("host=db"); err == nil || !strings.Contains(err.Error(), "sslcrl is not supported") {
		t.Errorf("Parse with PGSSLCRL = %v, want an error", err)
	}
	t.Setenv("PGSSLCRL", "")
	t.Setenv("PGTARGETSESSIONATTRS", "read-only")
	if _, err := libpq.Parse("host=db"); err == nil || !strings.Contains(err.Error(), "use primary or read-write") {
		t.Errorf("Parse with PGTARGETSESSIONATTRS = %v, want an error", err)
	}
	t.Setenv("PGTARGETSESSIONATTRS", "")
	cfg, err := libpq.Parse("host=db sslmode=verify-full ssl_min_protocol_version=TLSv1.3 sslrootcert=" + ca.File())
	if err != nil || cfg.TLSConfig.MinVersion != tls.VersionTLS13 {
		t.Errorf("Parse with ssl_min_protocol_version=TLSv1.3 = %v", err)
	}
}

// sslrootcert=system means verify-full, as with libpq, which knows no weaker
// mode with it.
func TestA37TheSystemsCertificatesVerifyInFull(t *testing.T) {
	t.Parallel()
	for _, conninfo := range []string{"host=db sslrootcert=system", "host=db sslmode=verify-full sslrootcert=system", "postgres://db/shop?sslrootcert=system&sslmode=require"} {
		cfg, err := libpq.Parse(conninfo)
		if err != nil {
			t.Errorf("Parse(%q) = %v", conninfo, err)
			continue
		}
		if got := libpq.Mode(&cfg.Config); got != "verify-full" {
			t.Errorf("Mode of %q = %s, want verify-full", conninfo, got)
		}
	}
}

func TestAClientKeyUnderAPasswordIsOpenedBySslpassword(t *testing.T) {
	t.Parallel()
	ca := envtest.CA(t, "ours")
	pair := envtest.Issue(t)(ca.Client("certified"))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block, err := x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), []byte("secret"), x509.PEMCipherAES256) //nolint:staticcheck // what openssl writes with -traditional
	if err != nil {
		t.Fatal(err)
	}
	locked := write(t, "client.key", string(pem.EncodeToMemory(block)), 0o600)
	base := "host=db sslmode=require sslcert=" + pair.CertFile + " sslkey=" + locked
	// The key opens, and only then is seen not to be the certificate's.
	for password, want := range map[string]string{"": "unable to find sslpassword", " sslpassword=wrong": "decrypt", " sslpassword=secret": "unable to load cert"} {
		_, err := libpq.Parse(base + password)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("Parse with%q = %v, want an error with %q", password, err, want)
		}
	}
}

// What this package reads of a string is what pgx reads of it.
func FuzzTheSameSettingsAsPgx(f *testing.F) {
	for _, seed := range []string{
		"host=db passfile=/x application_name=a", `application_name='it''s' x=y`, `application_name=a\ b host=db`, `application_name='a\'b\\' `,
		"postgres://u:p?x@h/d?application_name=a%20b+c&host=x", "postgres://h?application_name=a", "application_name = 'x' application_name=y",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, conninfo string) {
		for _, part := range []string{"file", "service", "sslcert", "sslkey", "sslroot"} {
			if strings.Contains(conninfo, part) {
				return // it would read files
			}
		}
		cfg, err := pgx.ParseConfig(conninfo)
		if err != nil {
			return
		}
		got := libpq.Setting(conninfo, "application_name")
		if want := cfg.RuntimeParams["application_name"]; got != want {
			t.Errorf("application_name of %q = %q, pgx has %q", conninfo, got, want)
		}
	})
}
