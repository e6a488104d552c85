package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// special is the password of A36.
const special = "p@ss:w/o#r%d?&=+ é'\"\\"

func keyValue(password string) string {
	return "host=127.0.0.1 user=relay password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "' dbname=shop"
}

func TestA36SecretsAreMaskedInEveryForm(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"postgres://relay@db/shop":                                               "postgres://relay@db/shop",
		"postgres://relay:geheim@db/shop?sslmode=require":                        "postgres://relay:xxxxx@db/shop?sslmode=require",
		"postgresql://relay@db/shop?password=geheim&x=y":                         "postgresql://relay@db/shop?password=xxxxx&x=y",
		"postgres://db/shop?sslpassword=geheim":                                  "postgres://db/shop?sslpassword=xxxxx",
		"postgres://relay:gehe%zzim@db/shop":                                     "xxxxx",
		"postgres://relay:ge/heim@db:5432/shop":                                  "xxxxx",
		"host=db password=geheim dbname=shop":                                    "host=db password=xxxxx dbname=shop",
		"host=db password = geheim dbname=shop":                                  "host=db password=xxxxx dbname=shop",
		"host=db password='ge heim' dbname=shop":                                 "host=db password=xxxxx dbname=shop",
		`host=db password='ge\'heim x' sslpassword=geheim`:                       `host=db password=xxxxx sslpassword=xxxxx`,
		`password=ge\ heim host=db`:                                              `password=xxxxx host=db`,
		`host=db password='geheim`:                                               `host=db password=xxxxx`,
		`PASSWORD=geheim`:                                                        `PASSWORD=xxxxx`,
		"host=db dbname=shop application_name='password=shown'":                  "host=db dbname=shop application_name='password=shown'",
		keyValue(special):                                                        "host=127.0.0.1 user=relay password=xxxxx dbname=shop",
		"postgres://" + url.UserPassword("relay", special).String() + "@db/shop": "postgres://relay:xxxxx@db/shop",
	} {
		if got := maskDSN(raw); got != want {
			t.Errorf("maskDSN(%s) = %s, want %s", raw, got, want)
		}
	}
	for raw, want := range map[string]string{
		"nats://a:4222,nats://b:4222":                 "nats://a:4222,nats://b:4222",
		"nats://token@a:4222, nats://u:geheim@b:4222": "nats://xxxxx@a:4222,nats://u:xxxxx@b:4222",
		"u:geheim@b:4222":                             "xxxxx",
		"tls://u:g#h@b":                               "xxxxx",
	} {
		if got := maskURLs(raw, true); got != want {
			t.Errorf("maskURLs(%s) = %s, want %s", raw, got, want)
		}
	}
}

func TestMaskingKnowsKeyValuePairsAsPgxReadsThem(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(keyValue(special))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Password != special {
		t.Errorf("pgx reads the password %q, want %q", cfg.Password, special)
	}
}

func TestA36ConfigShowsNoSecret(t *testing.T) {
	const natsSecret = "na%2Fts%40geheim"
	for _, form := range []string{"--json", "--log-level=debug"} {
		code, stdout, stderr := call("config", form,
			"--database-url", "postgres://"+url.UserPassword("relay", special).String()+"@db/shop",
			"--replication-url", keyValue(special), "--nats", "nats://u:"+natsSecret+"@h:4222")
		if code != exitDone {
			t.Fatalf("walrelay config = %d: %s", code, stderr)
		}
		for _, secret := range []string{special, url.QueryEscape(special), "p@ss", "p%40ss", "r%25d", natsSecret, "na/ts@geheim", "geheim"} {
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("walrelay config %s shows %q:\n%s", form, secret, stdout)
			}
		}
	}
}

func TestA36AnAddressThatCannotBeReadIsNamedWithoutItsContent(t *testing.T) {
	for _, c := range [][]string{
		{"--database-url", "postgres://relay:" + special + "@db/shop", "--nats", someNATS},
		{"--database-url", somePostgres, "--nats", "nats://relay:" + special + "@h:4222"},
		{"--database-url", "host=db port=" + special, "--nats", someNATS},
		{"--database-url", somePostgres, "--nats", someNATS, "postgres://relay:" + special + "@db/shop"},
		{"--database-url", somePostgres, "--nats", someNATS, "--slt=nats://relay:" + special + "@db/shop"},
		{"--database-url", somePostgres, "--nats", someNATS, "--window=nats://relay:" + special + "@db/shop"},
		{"--databse-url", "host=db password=" + special, "--nats", someNATS},
	} {
		code, stdout, stderr := call(append([]string{"run", "--log-level=debug"}, c...)...)
		if code != exitUsage || len(problems(stderr)) == 0 {
			t.Errorf("walrelay run %q = %d, want %d: %s", c, code, exitUsage, stderr)
		}
		for _, secret := range []string{"p@ss", ":w", "o#r", "r%d", "&=+"} {
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("walrelay run %q shows the password: %s", c, stderr)
				break
			}
		}
	}
}
