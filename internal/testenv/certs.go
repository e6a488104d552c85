package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// A CA signs certificates for tests. Its files are in the Env's folder.
type CA struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// A Pair is a certificate and its key, as PEM files.
type Pair struct{ CertFile, KeyFile string }

// NewCA makes a certificate authority of that name.
func (e *Env) NewCA(name string) (*CA, error) {
	dir, err := e.folder("ca")
	if err != nil {
		return nil, err
	}
	ca := &CA{dir: dir}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make the key of CA %s: %w", name, err)
	}
	der, err := sign(template, template, &ca.key.PublicKey, ca.key, time.Hour)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of CA %s: %w", name, err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read the certificate of CA %s: %w", name, err)
	}
	return ca, writePEM(ca.File(), "CERTIFICATE", der)
}

// File holds the CA's own certificate, for those who trust it.
func (c *CA) File() string { return filepath.Join(c.dir, "ca.crt") }

// Server makes a certificate for a server with these names or addresses.
func (c *CA) Server(names ...string) (Pair, error) { return c.server(time.Hour, names) }

// Expired makes one whose time was over an hour ago.
func (c *CA) Expired(names ...string) (Pair, error) { return c.server(-time.Hour, names) }

// Client makes a certificate for a client whose common name is name.
func (c *CA) Client(name string) (Pair, error) {
	return c.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, time.Hour)
}

func (c *CA) server(validity time.Duration, names []string) (Pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return c.issue(template, validity)
}

func (c *CA) issue(template *x509.Certificate, validity time.Duration) (Pair, error) {
	dir, err := os.MkdirTemp(c.dir, "pair-")
	if err != nil {
		return Pair{}, fmt.Errorf("make a folder for a certificate: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	der, err := sign(template, c.cert, &key.PublicKey, c.key, validity)
	if err != nil {
		return Pair{}, fmt.Errorf("sign a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a key: %w", err)
	}
	pair := Pair{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	if err := writePEM(pair.CertFile, "CERTIFICATE", der); err != nil {
		return Pair{}, err
	}
	return pair, writePEM(pair.KeyFile, "PRIVATE KEY", secret)
}

// sign issues a certificate that is valid until validity from now.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey, validity time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-24*time.Hour), time.Now().Add(validity)
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

func writePEM(path, kind string, der []byte) error {
	// Only the owner may read it: servers and clients refuse other keys.
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
