package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

// soonExpired is how long before its end a certificate is worth a word.
const soonExpired = 14 * 24 * time.Hour

// examine looks at the admin listener: who may ask there, and whether somebody
// answers. That nobody does is no fault, for the relay may not run yet.
func (l *listener) examine(ctx context.Context, source string, now time.Time) []walrelay.Check {
	check := func(v walrelay.Verdict, name, value, why, fix string) walrelay.Check {
		return walrelay.Check{Area: "admin listener", Name: name, Value: value, Verdict: v, Why: why, Fix: fix}
	}
	if l.Admin == "off" {
		return []walrelay.Check{check(walrelay.VerdictWarn, "address", "off", "nobody can see whether the relay delivers, and no alert is possible", "set --admin, such as 127.0.0.1:9640")}
	}
	var all []walrelay.Check
	switch who := l.who(); {
	case admin.Loopback(l.Admin):
		all = append(all, check(walrelay.VerdictOK, "address", l.Admin+", "+who, "it can be reached from this machine only", ""))
	case l.AdminTLSCert == "":
		all = append(all, check(walrelay.VerdictWarn, "address", l.Admin+", "+who, "status and metrics go over the network in the clear, and the token with each request", "set --admin-tls-cert and --admin-tls-key"))
	default:
		all = append(all, check(walrelay.VerdictOK, "address", l.Admin+", "+who, "it is encrypted, and not everybody may ask", ""))
	}
	if l.AdminTLSCert != "" {
		if ends, err := expiry(l.AdminTLSCert, l.AdminTLSKey); err != nil {
			all = append(all, check(walrelay.VerdictFail, "certificate", "not usable", err.Error(), "name a certificate and its key in PEM form"))
		} else if left := ends.Sub(now); left < soonExpired {
			all = append(all, check(walrelay.VerdictWarn, "certificate", fmt.Sprintf("valid until %s", ends.UTC().Format(time.RFC3339)), "after that nobody can ask", "put a new one into the files; they are read again at each connection"))
		} else {
			all = append(all, check(walrelay.VerdictOK, "certificate", fmt.Sprintf("valid until %s", ends.UTC().Format(time.RFC3339)), "after that nobody can ask", ""))
		}
	}
	report, err := l.askAdmin(ctx)
	switch {
	case err != nil:
		all = append(all, check(walrelay.VerdictUnknown, "relay", "none answers there", err.Error(), ""))
	case report.Source != source:
		all = append(all, check(walrelay.VerdictWarn, "relay", fmt.Sprintf("one of source %q answers there", report.Source), "this one's status could not be seen while that one has the address", "give each relay on a machine an address of its own (--admin)"))
	case !report.Ready:
		all = append(all, check(walrelay.VerdictWarn, "relay", string(report.Phase), report.NotReady, ""))
	default:
		all = append(all, check(walrelay.VerdictOK, "relay", string(report.Phase), "it delivers, or would if there were events", ""))
	}
	return all
}

// who says who may ask.
func (l *listener) who() string {
	switch {
	case l.AdminTokenFile != "" && l.AdminTLSClientCA != "":
		return "with a token or a certificate"
	case l.AdminTokenFile != "":
		return "with a token"
	case l.AdminTLSClientCA != "":
		return "with a certificate"
	}
	return "open to all who reach it"
}

func expiry(certFile, keyFile string) (time.Time, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return time.Time{}, err
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, nil
}
