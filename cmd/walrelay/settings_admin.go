package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

// listener are the flags of every verb that serves or asks the admin listener.
// Its files are read again whenever they are needed.
type listener struct {
	Admin            string `help:"Address of status page, health and metrics; off for none. Nothing secret is there, and nothing that changes anything. Other than on loopback it wants a token or client certificates." placeholder:"HOST:PORT" default:"127.0.0.1:9640"`
	AdminTokenFile   string `help:"File with the token that --admin wants, and that status shows: at least 16 characters." placeholder:"FILE"`
	AdminTLSCert     string `name:"admin-tls-cert" help:"Certificate of --admin, together with --admin-tls-key; turns TLS on. What status shows as its own." placeholder:"FILE"`
	AdminTLSKey      string `name:"admin-tls-key" help:"Key of --admin-tls-cert." placeholder:"FILE"`
	AdminTLSClientCA string `name:"admin-tls-client-ca" help:"Certificates that sign those of who may ask --admin. For status: those that sign the listener's (default: the system's)." placeholder:"FILE"`
}

func (l *listener) access() admin.Access {
	return admin.Access{Addr: l.Admin, TokenFile: l.AdminTokenFile, CertFile: l.AdminTLSCert, KeyFile: l.AdminTLSKey, ClientCAFile: l.AdminTLSClientCA}
}

// checkAdmin finds what is wrong for who asks the listener.
func (l *listener) checkAdmin() error {
	if l.Admin == "off" {
		return nil
	}
	_, port, err := net.SplitHostPort(l.Admin)
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // a number or a name of /etc/services
	}
	if err != nil {
		return &walrelay.ConfigError{Field: "Admin", Value: l.Admin, Reason: "use an address such as 127.0.0.1:9640, or off"}
	}
	err = errors.Join(
		readable("AdminTokenFile", l.AdminTokenFile), readable("AdminTLSCert", l.AdminTLSCert),
		readable("AdminTLSKey", l.AdminTLSKey), readable("AdminTLSClientCA", l.AdminTLSClientCA),
	)
	if (l.AdminTLSCert == "") != (l.AdminTLSKey == "") {
		err = errors.Join(err, &walrelay.ConfigError{Field: "AdminTLSCert", Reason: "and --admin-tls-key go together; set both"})
	}
	if err != nil {
		return err
	}
	access := l.access()
	if err := access.Check(); err != nil {
		return &walrelay.ConfigError{Field: "Admin", Value: l.Admin, Reason: err.Error()}
	}
	return nil
}

// checkListener finds what is wrong for who is it.
func (l *listener) checkListener() error {
	if err := l.checkAdmin(); err != nil || l.Admin == "off" {
		return err
	}
	if l.AdminTLSClientCA != "" && l.AdminTLSCert == "" {
		return &walrelay.ConfigError{Field: "AdminTLSClientCA", Reason: "needs --admin-tls-cert and --admin-tls-key: without TLS nobody shows a certificate"}
	}
	if !admin.Loopback(l.Admin) && l.AdminTokenFile == "" && l.AdminTLSClientCA == "" {
		return &walrelay.ConfigError{
			Field: "Admin", Value: l.Admin,
			Reason: "is not on loopback: set --admin-token-file, or --admin-tls-client-ca with --admin-tls-cert and --admin-tls-key, so that not everybody may ask",
		}
	}
	return nil
}

// serve begins to answer status and metrics. The function that it gives ends
// that, after the relay: a relay that stops says so until its end.
func (l *listener) serve(ctx context.Context, relay *walrelay.Relay, log *slog.Logger) (stop func()) {
	if l.Admin == "off" {
		return func() {}
	}
	if !admin.Loopback(l.Admin) && l.AdminTLSCert == "" {
		log.WarnContext(ctx, "status and metrics go over the network in the clear, and the admin token with each request; --admin-tls-cert turns TLS on",
			slog.String("admin", l.Admin))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	past := admin.NewHistory(relay.Status)
	var done sync.WaitGroup
	done.Go(func() { past.Run(ctx) })
	done.Go(func() { admin.Serve(ctx, l.access(), admin.New(relay.Status, build(), past), log) })
	return func() {
		cancel()
		done.Wait()
	}
}

// askAdmin asks for the relay's status.
func (l *listener) askAdmin(ctx context.Context) (*admin.Report, error) {
	var report admin.Report
	if err := l.fetch(ctx, "/status", &report); err != nil {
		return nil, err
	}
	if report.State == "" {
		return nil, errNotWalrelay
	}
	return &report, nil
}

// askHistory asks for the last hour.
func (l *listener) askHistory(ctx context.Context) ([]admin.Point, error) {
	var past struct {
		Points []admin.Point `json:"points"`
	}
	err := l.fetch(ctx, "/history", &past)
	return past.Points, err
}

var errNotWalrelay = errors.New("something else than walrelay listens there")

// fetch goes to the listener directly, whatever proxy the environment names, and
// reads what it answers into to.
func (l *listener) fetch(ctx context.Context, path string, to any) error {
	host, port, err := net.SplitHostPort(l.Admin)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // what a listener on all addresses means for those who ask
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	scheme := "http"
	if l.AdminTLSCert != "" || l.AdminTLSClientCA != "" {
		scheme = "https"
		if transport.TLSClientConfig, err = l.clientTLS(host); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return err
	}
	if l.AdminTokenFile != "" {
		token, err := readSecret(l.AdminTokenFile)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end, or given up
	const longest = 8 << 20
	body, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return errors.New("it wants the token of --admin-token-file, or a certificate (--admin-tls-cert)")
	case http.StatusTooManyRequests:
		return errors.New("it was shown too many wrong tokens; try again in a minute")
	}
	if response.StatusCode != http.StatusOK || json.Unmarshal(body, to) != nil {
		return errNotWalrelay
	}
	return nil
}

// clientTLS is how the listener is recognised: by a certificate that is signed
// and names it, or by the very one that this machine has for it.
func (l *listener) clientTLS(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	var err error
	if l.AdminTLSClientCA != "" {
		if c.RootCAs, err = admin.ReadCertificates(l.AdminTLSClientCA); err != nil {
			return nil, err
		}
	}
	if l.AdminTLSCert == "" {
		return c, nil
	}
	own, err := tls.LoadX509KeyPair(l.AdminTLSCert, l.AdminTLSKey)
	if err != nil {
		return nil, fmt.Errorf("read the certificate for the admin listener: %w", err)
	}
	c.Certificates = []tls.Certificate{own}
	c.InsecureSkipVerify = true // VerifyConnection does it
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if bytes.Equal(s.PeerCertificates[0].Raw, own.Certificate[0]) {
			return nil
		}
		between := x509.NewCertPool()
		for _, more := range s.PeerCertificates[1:] {
			between.AddCert(more)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: c.RootCAs, DNSName: host, Intermediates: between})
		return err
	}
	return c, nil
}
