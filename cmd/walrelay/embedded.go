package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// embeddedPrefix marks a NATS address that means: run JetStream in here.
const embeddedPrefix = "embedded:"

// An embedded is a JetStream server inside the relay, for those who run one
// machine. Each acknowledgement is synced to disk first, so it survives the
// loss of power as far as fsync promises.
type embedded struct {
	server *server.Server
	url    string
	token  string
}

// startEmbedded runs a server on DIR and makes the stream where it is missing.
// On another address than loopback clients need the token, which is kept in
// DIR/token.
func startEmbedded(ctx context.Context, dir, listen, stream, subjects string) (*embedded, error) {
	if dir == "" {
		return nil, &usageError{errors.New("--nats embedded:DIR needs a folder, such as embedded:./data")}
	}
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--embedded-listen %q: use HOST:PORT, such as 127.0.0.1:4222", listen)}
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port < 0 || port > 65535 {
		return nil, &usageError{fmt.Errorf("--embedded-listen %q: the port must be a number up to 65535", listen)}
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the embedded JetStream: %w", err)
	}
	options := &server.Options{
		ServerName: "walrelay", Host: host, Port: port, JetStream: true, StoreDir: dir, SyncAlways: true,
		NoSigs: true, NoLog: true, MaxPayload: server.MAX_PAYLOAD_SIZE,
	}
	e := &embedded{}
	if !isLoopback(host) {
		if e.token, err = readToken(filepath.Join(dir, "token")); err != nil {
			return nil, err
		}
		options.Authorization = e.token
	}
	if err := portFree(listen, port); err != nil {
		return nil, err
	}
	if e.server, err = server.NewServer(options); err != nil {
		return nil, fmt.Errorf("make the embedded JetStream on %s: %w", dir, err)
	}
	e.server.Start()
	if !e.server.ReadyForConnections(30 * time.Second) {
		e.close()
		return nil, fmt.Errorf("the embedded JetStream on %s did not get ready in 30 s; is another process using the folder, or is its disk full?", dir)
	}
	e.url = e.server.ClientURL()
	if err := e.makeStream(ctx, stream, subjects); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// portFree looks before the server does, which would only log and never be
// ready.
func portFree(listen string, port int) error {
	if port < 0 {
		return nil
	}
	l, err := net.Listen("tcp", listen) //nolint:noctx // closed at once
	if err != nil {
		return fmt.Errorf("--embedded-listen %s: %w; choose another port, or end what listens there", listen, err)
	}
	return l.Close()
}

func (e *embedded) close() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// options gives what our own connection needs.
func (e *embedded) options() []nats.Option {
	if e.token == "" {
		return nil
	}
	return []nats.Option{nats.Token(e.token)}
}

func (e *embedded) makeStream(ctx context.Context, stream, subjects string) error {
	nc, err := nats.Connect(e.url, append(e.options(), nats.Name("walrelay embedded"))...)
	if err != nil {
		return fmt.Errorf("connect to the embedded JetStream: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use the embedded JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	switch _, err := js.Stream(ctx, stream); {
	case err == nil:
		return nil // whatever it is set to now is its owner's wish
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("look for stream %q of the embedded JetStream: %w", stream, err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: strings.Split(subjects, ","), Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
		Duplicates: 2 * time.Minute, AllowDirect: true, AllowAtomicPublish: true,
	})
	if err != nil {
		return fmt.Errorf("make stream %q of the embedded JetStream: %w", stream, err)
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// readToken gives the token that clients must show, made at the first start.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path) //nolint:gosec // a path that the operator gave
	if err == nil && len(strings.TrimSpace(string(b))) >= 16 {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the token of the embedded JetStream: %w", err)
	}
	raw := make([]byte, 24)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	token := hex.EncodeToString(raw)
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the token of the embedded JetStream: %w", err)
	}
	return token, nil
}
