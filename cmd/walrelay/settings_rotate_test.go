package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// nkey makes a user's nkey: what the server has of it, and the text of its file.
func nkey(t *testing.T) (public, seed string) {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	text, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = user.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return public, string(text) + "\n"
}

// I6: each kind of secret in a file is read again, while the relay runs, also
// after the client has closed for good. (Creds: A60 above. Certificates: A37
// here and A35 in e2e. PostgreSQL's: e2e.)
func TestASecretOfEachKindIsReadAgainWhenItsFileIsReplaced(t *testing.T) {
	t.Parallel()
	oldKey, oldSeed := nkey(t)
	newKey, newSeed := nkey(t)
	for name, c := range map[string]struct {
		config        string
		before, after string // what the server takes
		first, second string // what the file holds
		flags         func(b *broker, file string)
	}{
		"nkey": {"authorization { users: [{nkey: %s}] }", oldKey, newKey, oldSeed, newSeed, func(b *broker, file string) { b.NATSNkey = file }},
		"token": {
			"authorization { token: %q }", "the-first-token", "the-second-token", "the-first-token\n", "the-second-token\n",
			func(b *broker, file string) { b.NATSTokenFile = file },
		},
		"password": {
			"authorization { user: relay, password: %q }", "the-first-password", "the-second-password", "the-first-password\n", "the-second-password\n",
			func(b *broker, file string) { b.NATSUser, b.NATSPasswordFile = "relay", file },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := secret(t, fmt.Sprintf(c.config, c.before))
			server := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
			file := secret(t, c.first)
			b := broker{NATS: server.Addr()}
			c.flags(&b, file)
			conn := b.relays(t)
			awaitNATS(t, conn, true)
			restartWith(t, server, path, fmt.Sprintf(c.config, c.after))
			awaitNATS(t, conn, false, "uthorization")
			replace(t, file, c.second)
			awaitNATS(t, conn, true)
			// A file that is not there for a moment is no end either.
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			restartWith(t, server, path, fmt.Sprintf(c.config, c.after))
			awaitNATS(t, conn, false)
			replace(t, file, c.second)
			awaitNATS(t, conn, true)
		})
	}
}

func restartWith(t *testing.T, server *testenv.NATS, path, config string) {
	t.Helper()
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	replace(t, path, config)
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
