package admin_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const token = "a-token-of-the-tests-0123456789"

// A site is a listener with its log.
type site struct {
	t    *testing.T
	addr string

	mu  sync.Mutex
	log bytes.Buffer
}

func (s *site) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *site) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

var servedAt = regexp.MustCompile(`admin=(\S+)`)

func serve(t *testing.T, access admin.Access) *site {
	t.Helper()
	s := &site{t: t}
	access.Addr = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		admin.Serve(ctx, access, handler(relaying()), slog.New(slog.NewTextHandler(s, nil)))
	}()
	t.Cleanup(func() { cancel(); <-done })
	envtest.Eventually(t, 10*time.Second, func() error {
		m := servedAt.FindStringSubmatch(s.text())
		if m == nil {
			return fmt.Errorf("not served yet: %s", s.text())
		}
		s.addr = m[1]
		return nil
	})
	return s
}

// An answer is what came back.
type answer struct {
	code   int
	body   string
	header http.Header
}

func (s *site) ask(path string, with func(*http.Request), trust *tls.Config) answer {
	s.t.Helper()
	scheme := "http"
	if trust != nil {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, scheme+"://"+s.addr+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if with != nil {
		with(request)
	}
	response, err := (&http.Transport{DisableKeepAlives: true, TLSClientConfig: trust}).RoundTrip(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{code: response.StatusCode, body: string(body), header: response.Header}
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func tokenFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// I10: who does not have the token learns nothing, not even why.
func TestOnlyTheTokenLetsIn(t *testing.T) {
	t.Parallel()
	file := tokenFile(t, token+"\n")
	s := serve(t, admin.Access{TokenFile: file})
	paths := []string{"/", "/status", "/metrics", "/history", "/healthz", "/readyz", "/nothing"}
	for _, path := range paths {
		for name, with := range map[string]func(*http.Request){
			"bearer": bearer(token), "basic": func(r *http.Request) { r.SetBasicAuth("anybody", token) },
		} {
			if got := s.ask(path, with, nil); (got.code != http.StatusOK) != (path == "/nothing") {
				t.Errorf("%s with the token as %s = %d %q, want 200", path, name, got.code, got.body)
			}
		}
	}
	health := strings.Contains
	for _, path := range paths {
		got := s.ask(path, nil, nil)
		switch path {
		case "/healthz", "/readyz":
			if got.code != http.StatusOK || got.body != "ok\n" {
				t.Errorf("%s without a token = %d %q, want 200 and no word more than ok", path, got.code, got.body)
			}
		default:
			if got.code != http.StatusUnauthorized || got.body != "unauthorized\n" || !health(fmt.Sprint(got.header["Www-Authenticate"]), "Basic") {
				t.Errorf("%s without a token = %d %q %v, want 401 without detail, and how to show one", path, got.code, got.body, got.header)
			}
		}
	}
	for i, wrong := range []string{"", "wrong", token[:len(token)-1], token + "x", strings.ToUpper(token), strings.Repeat("x", 10_000)} {
		if got := s.ask("/readyz", bearer(wrong), nil); got.code != http.StatusUnauthorized || got.body != "unauthorized\n" {
			t.Errorf("wrong token %d = %d %q, want 401 without detail", i+1, got.code, got.body)
		}
	}
	// Another token in the file is the token from then on.
	if err := os.WriteFile(file, []byte(token+"-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.ask("/status", bearer(token+"-2"), nil); got.code != http.StatusOK {
		t.Errorf("the new token = %d, want 200", got.code)
	}
	if got := s.ask("/status", bearer(token), nil); got.code != http.StatusUnauthorized {
		t.Errorf("the old token = %d, want 401", got.code)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.ask("/status", bearer(""), nil); got.code != http.StatusUnauthorized {
		t.Errorf("no token where the file is empty = %d, want 401", got.code)
	}
	if strings.Contains(s.text(), token) {
		t.Errorf("the log has the token:\n%s", s.text())
	}
}

func TestWhoGuessesTokensHasToWait(t *testing.T) {
	t.Parallel()
	s := serve(t, admin.Access{TokenFile: tokenFile(t, token)})
	codes := map[int]int{}
	for i := range 30 {
		codes[s.ask("/status", bearer(fmt.Sprint("guess ", i)), nil).code]++
	}
	// A few more may be allowed where this takes long.
	if codes[http.StatusUnauthorized] < 10 || codes[http.StatusTooManyRequests] < 10 || len(codes) != 2 {
		t.Errorf("30 wrong tokens were answered by %v, want some 10 by 401 and the others by 429", codes)
	}
	got := s.ask("/status", bearer(token), nil)
	if got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("the right token behind 30 wrong ones = %d %v, want 429 and when to come again: a guess must not be confirmed", got.code, got.header)
	}
	if got := s.ask("/healthz", nil, nil); got.code != http.StatusOK {
		t.Errorf("/healthz behind 30 wrong tokens = %d, want 200", got.code)
	}
	if n := strings.Count(s.text(), "wrong token"); n != 1 {
		t.Errorf("%d lines about wrong tokens, want one a minute:\n%s", n, s.text())
	}
}

func TestOnLoopbackAPageOfElsewhereReadsNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, admin.Access{})
	for host, want := range map[string]int{
		"": http.StatusOK, "localhost:9640": http.StatusOK, "LOCALHOST": http.StatusOK, "127.0.0.1": http.StatusOK, "[::1]:80": http.StatusOK, "127.1.2.3:1": http.StatusOK,
		"walrelay.localhost": http.StatusOK, "evil.example": http.StatusForbidden, "evil.example:9640": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden,
		"10.0.0.1": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden, "notlocalhost": http.StatusForbidden,
	} {
		got := s.ask("/status", func(r *http.Request) {
			if host != "" {
				r.Host = host
			}
		}, nil)
		if got.code != want || want != http.StatusOK && strings.Contains(got.body, "shop") {
			t.Errorf("Host %q = %d %q, want %d", host, got.code, got.body, want)
		}
	}
}

// A37.
func TestAClientCertificateLetsIn(t *testing.T) {
	t.Parallel()
	ca, other := envtest.CA(t, "walrelay tests"), envtest.CA(t, "others")
	issue := envtest.Issue(t)
	own := issue(ca.Server("127.0.0.1"))
	s := serve(t, admin.Access{CertFile: own.CertFile, KeyFile: own.KeyFile, ClientCAFile: ca.File()})
	trust := func(pair *testenv.Pair) *tls.Config {
		roots, err := admin.ReadCertificates(ca.File())
		if err != nil {
			t.Fatal(err)
		}
		c := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if pair != nil {
			shown, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{shown}
			// Whatever the server asks for, this is shown.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
		}
		return c
	}
	known, stranger := issue(ca.Client("operator")), issue(other.Client("operator"))
	if got := s.ask("/status", nil, trust(&known)); got.code != http.StatusOK {
		t.Errorf("a certificate of the CA = %d %q, want 200", got.code, got.body)
	}
	if got := s.ask("/status", nil, trust(&stranger)); got.code != 0 {
		t.Errorf("a certificate of another CA = %d %q, want no connection", got.code, got.body)
	}
	if got := s.ask("/status", nil, trust(nil)); got.code != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != "" {
		t.Errorf("no certificate = %d %v, want 401, and nothing that asks for a token", got.code, got.header)
	}
	if got := s.ask("/status", bearer(token), trust(nil)); got.code != http.StatusUnauthorized {
		t.Errorf("a token where none is set = %d, want 401", got.code)
	}
	if got := s.ask("/readyz", nil, trust(nil)); got.code != http.StatusOK || got.body != "ok\n" {
		t.Errorf("/readyz without a certificate = %d %q, want 200 and ok", got.code, got.body)
	}
	if got := s.ask("/status", nil, nil); got.code == http.StatusOK {
		t.Errorf("HTTP without TLS = %d, want nothing", got.code)
	}
}
