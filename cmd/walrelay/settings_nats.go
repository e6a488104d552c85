package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
)

// broker are the flags of every verb that needs NATS. The files are read again
// at each connect.
type broker struct {
	NATS             string `name:"nats" help:"NATS servers, separated by commas; for run also embedded:DIR, a JetStream inside the relay." placeholder:"URL" secret:"urls"`
	NATSCreds        string `name:"nats-creds" help:"Credentials file of a NATS user (JWT and seed)." placeholder:"FILE"`
	NATSNkey         string `name:"nats-nkey" help:"File with the seed of a NATS nkey." placeholder:"FILE"`
	NATSUser         string `name:"nats-user" help:"NATS user, together with --nats-password-file." placeholder:"NAME"`
	NATSPasswordFile string `name:"nats-password-file" help:"File with the password of --nats-user." placeholder:"FILE"`
	NATSTokenFile    string `name:"nats-token-file" help:"File with a NATS token." placeholder:"FILE"`
	NATSCA           string `name:"nats-ca" help:"Certificates that sign the NATS servers' (default: the system's); turns TLS on." placeholder:"FILE"`
	NATSCert         string `name:"nats-cert" help:"Own certificate for NATS, together with --nats-key; turns TLS on." placeholder:"FILE"`
	NATSKey          string `name:"nats-key" help:"Key of --nats-cert." placeholder:"FILE"`
	NATSTLSFirst     bool   `name:"nats-tls-first" help:"Begin TLS before the server's greeting, for servers with handshake_first; turns TLS on."`
	NATSDomain       string `name:"nats-domain" help:"JetStream domain of the stream (default: the server's own)." placeholder:"NAME"`
	NATSInboxPrefix  string `name:"nats-inbox-prefix" help:"First part of the subjects on which answers come, for users that may not subscribe to _INBOX." placeholder:"PREFIX"`
}

// options are made anew for each client. What the client reads by itself at
// each connect, it reads again at each reconnect too.
func (b *broker) options() ([]nats.Option, error) {
	var opts []nats.Option
	switch {
	case b.NATSCreds != "":
		opts = append(opts, nats.UserCredentials(b.NATSCreds))
	case b.NATSNkey != "":
		o, err := nats.NkeyOptionFromSeed(b.NATSNkey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey in %s: %w", b.NATSNkey, err)
		}
		opts = append(opts, o)
	case b.NATSUser != "":
		// The callbacks have no way to fail. With a file that cannot be read
		// the server refuses us, and we come again.
		opts = append(opts, nats.UserInfoHandler(func() (string, string) {
			password, _ := readSecret(b.NATSPasswordFile)
			return b.NATSUser, password
		}))
	case b.NATSTokenFile != "":
		opts = append(opts, nats.TokenHandler(func() string {
			token, _ := readSecret(b.NATSTokenFile)
			return token
		}))
	}
	if b.NATSCA != "" {
		opts = append(opts, nats.RootCAs(b.NATSCA))
	}
	if b.NATSCert != "" && b.NATSKey != "" {
		opts = append(opts, nats.ClientCert(b.NATSCert, b.NATSKey))
	}
	if b.NATSTLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts, nil
}

// connect is for the verbs that ask and leave. Its errors repeat no secret.
func (b *broker) connect(name string, more ...nats.Option) (*nats.Conn, error) {
	if err := b.checkNATS(); err != nil {
		return nil, &usageError{err}
	}
	opts, err := b.options()
	if err != nil {
		return nil, &usageError{err}
	}
	if b.NATSInboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(b.NATSInboxPrefix))
	}
	nc, err := nats.Connect(b.NATS, append(append(opts, nats.Name(name)), more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %s", maskURLs(b.NATS, true), maskText(err.Error()))
	}
	return nc, nil
}

// jetStream is the way to the streams of the domain that was named.
func (b *broker) jetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(nc)
	if b.NATSDomain != "" {
		js, err = jetstream.NewWithDomain(nc, b.NATSDomain)
	}
	if err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	return js, nil
}

// checkNATS finds what is wrong with the flags without a server. That none is
// named is the relay's to say.
func (b *broker) checkNATS() error {
	var problems []error
	bad := func(field, reason string) {
		problems = append(problems, &walrelay.ConfigError{Field: field, Reason: reason})
	}
	inURL := false
	for i, server := range strings.Split(b.NATS, ",") {
		if b.NATS == "" || strings.HasPrefix(b.NATS, embeddedPrefix) {
			break
		}
		user, problem := natsServer(server)
		inURL = inURL || user
		if problem != "" {
			bad("NATS", fmt.Sprintf("server %d of the list %s", i+1, problem))
		}
	}
	var ways []string
	for _, way := range []struct {
		name string
		used bool
	}{
		{"a user in --nats", inURL},
		{"--nats-creds", b.NATSCreds != ""},
		{"--nats-nkey", b.NATSNkey != ""},
		{"--nats-user", b.NATSUser != "" || b.NATSPasswordFile != ""},
		{"--nats-token-file", b.NATSTokenFile != ""},
	} {
		if way.used {
			ways = append(ways, way.name)
		}
	}
	if len(ways) > 1 {
		bad("NATS", "is told of "+strings.Join(ways, " and ")+"; use one of them")
	}
	if (b.NATSUser == "") != (b.NATSPasswordFile == "") {
		bad("NATSUser", "and --nats-password-file go together; set both")
	}
	if (b.NATSCert == "") != (b.NATSKey == "") {
		bad("NATSCert", "and --nats-key go together; set both")
	}
	for _, file := range []struct{ field, path string }{
		{"NATSCreds", b.NATSCreds},
		{"NATSNkey", b.NATSNkey},
		{"NATSPasswordFile", b.NATSPasswordFile},
		{"NATSTokenFile", b.NATSTokenFile},
		{"NATSCA", b.NATSCA},
		{"NATSCert", b.NATSCert},
		{"NATSKey", b.NATSKey},
	} {
		if err := readable(file.field, file.path); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// natsServer says what is wrong with one address, naming the part and not its
// content, and whether it holds a user or token.
func natsServer(raw string) (user bool, problem string) {
	raw = strings.TrimSpace(raw)
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return strings.Contains(raw, "@"), "cannot be read as a URL; write the special characters of user and password in percent form " +
			"(@ as %40, : as %3A, / as %2F, # as %23, ? as %3F, % as %25, a comma as %2C)"
	case u.Hostname() == "":
		return u.User != nil, "has no host; want a list such as nats://a:4222,nats://b:4222"
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return u.User != nil, ""
	}
	return u.User != nil, "has the scheme " + u.Scheme + "; use nats, tls, ws or wss"
}
