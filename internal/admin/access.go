package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// An Access says on which address the listener answers, and whom. On loopback
// everybody on this machine may ask; elsewhere a token or a certificate is
// wanted. Where both are set, either will do.
//
// The files are read again whenever they are needed, so that what is in them
// can be changed while the relay runs.
type Access struct {
	// Addr is host and port.
	Addr string
	// TokenFile has the token: Authorization: Bearer TOKEN, or the password of
	// Basic authentication, which browsers ask for.
	TokenFile string
	// CertFile and KeyFile make the listener speak TLS; ClientCAFile has the
	// certificates that sign those of clients.
	CertFile, KeyFile, ClientCAFile string
}

// Loopback says whether addr can be reached from this machine only.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// guarded says whether a request needs to show something.
func (a *Access) guarded() bool { return a.TokenFile != "" || a.ClientCAFile != "" }

// Check says why nobody could be let in, or everybody would be: what is wrong
// with the files as they are now.
func (a *Access) Check() error {
	if a.TokenFile != "" {
		if _, err := a.token(); err != nil {
			return err
		}
	}
	if a.CertFile != "" {
		if _, err := a.tls(); err != nil {
			return err
		}
	}
	return nil
}

// longestToken bounds what is read of the token's file.
const longestToken = 4096

// shortestToken is how long a token must be: one that is shorter can be guessed.
const shortestToken = 16

// token is the hash of what the file has now, without the white space around it.
func (a *Access) token() (hash [sha256.Size]byte, err error) {
	text, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return hash, fmt.Errorf("read the admin token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < shortestToken || len(token) > longestToken {
		return hash, fmt.Errorf("the admin token in %s has %d characters; use %d to %d, such as those of: openssl rand -hex 24", a.TokenFile, len(token), shortestToken, longestToken)
	}
	return sha256.Sum256([]byte(token)), nil
}

// tls is what the files say now.
func (a *Access) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the admin listener's certificate: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if a.ClientCAFile == "" {
		return c, nil
	}
	if c.ClientCAs, err = ReadCertificates(a.ClientCAFile); err != nil {
		return nil, err
	}
	// Who comes without one may still ask for the bare health, or has a token.
	c.ClientAuth = tls.VerifyClientCertIfGiven
	return c, nil
}

// ReadCertificates reads a file of certificates that sign others.
func ReadCertificates(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", path)
	}
	return pool, nil
}

// listen wraps a listener in TLS where that is set.
func (a *Access) listen(inner net.Listener) net.Listener {
	if a.CertFile == "" {
		return inner
	}
	return tls.NewListener(inner, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return a.tls() },
	})
}

// guard lets through who may ask.
func (a *Access) guard(next http.Handler, log *slog.Logger) http.Handler {
	g := &guard{Access: a, next: next, log: log, loopback: Loopback(a.Addr)}
	g.host, _, _ = net.SplitHostPort(a.Addr) // Serve could not listen on anything else
	return g
}

type guard struct {
	*Access
	next     http.Handler
	log      *slog.Logger
	loopback bool
	host     string
	tries    tries
}

// ServeHTTP answers who may ask. Who may not learns no more than that.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.loopback && !g.known(r.Host) {
		// A page of elsewhere whose name was made to lead here: what it
		// would read is for this machine only.
		text(w, http.StatusForbidden, "the Host header is not a name of this machine\n")
		return
	}
	if !g.guarded() {
		g.next.ServeHTTP(w, r)
		return
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && g.ClientCAFile != "" {
		g.next.ServeHTTP(w, r)
		return
	}
	shown, some := credentials(r)
	if !some {
		if probe(r) {
			g.next.ServeHTTP(bare{w}, r)
			return
		}
		g.refuse(w)
		return
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	if wait := g.tries.wait(from, time.Now()); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)+1))
		text(w, http.StatusTooManyRequests, "too many requests\n")
		return
	}
	if err := g.accepts(shown); err != nil {
		if count := g.tries.failed(from, time.Now()); count > 0 {
			g.log.WarnContext(r.Context(), "wrong token on the admin listener", slog.String("from", from), slog.Int("times", count), slog.String("err", err.Error()))
		}
		g.refuse(w)
		return
	}
	g.next.ServeHTTP(w, r)
}

var errWrongToken = errors.New("it is not the token")

func (g *guard) accepts(shown string) error {
	if g.TokenFile == "" {
		return errors.New("only a certificate lets in here")
	}
	want, err := g.token()
	if err != nil {
		return err
	}
	if got := sha256.Sum256([]byte(shown)); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return errWrongToken
	}
	return nil
}

func (g *guard) refuse(w http.ResponseWriter) {
	if g.TokenFile != "" {
		w.Header().Add("WWW-Authenticate", `Bearer realm="walrelay"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="walrelay: any name, and the token as password", charset="UTF-8"`)
	}
	text(w, http.StatusUnauthorized, "unauthorized\n")
}

// credentials gives the token that a request shows.
func credentials(r *http.Request) (token string, some bool) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", false
	}
	if scheme, rest, _ := strings.Cut(header, " "); strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(rest), true
	}
	_, password, _ := r.BasicAuth()
	return password, true
}

// known says whether a Host header names this machine.
func (g *guard) known(header string) bool {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || host == strings.ToLower(g.host) || ip != nil && ip.IsLoopback()
}

// probe says whether a request is one of those that a supervisor makes, which
// has no place for a secret.
func probe(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.URL.Path == "/healthz" || r.URL.Path == "/readyz")
}

// bare keeps the reason back: without a token the code is all that is told.
type bare struct{ http.ResponseWriter }

// Write writes the code in a word instead.
func (b bare) Write(p []byte) (int, error) {
	word := "ok\n"
	if !strings.HasPrefix(string(p), "alive") && !strings.HasPrefix(string(p), "ready") {
		word = "not ready\n"
	}
	if _, err := b.ResponseWriter.Write([]byte(word)); err != nil {
		return 0, err
	}
	return len(p), nil
}
