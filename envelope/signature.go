package envelope

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kinds of keys, as a key file names them.
const (
	// KindHMAC is one secret for both sides: who verifies can sign as well.
	KindHMAC = "hmac-sha256"
	// KindEd25519 signs; it is the relay's alone.
	KindEd25519 = "ed25519"
	// KindEd25519Public verifies and is no secret.
	KindEd25519Public = "ed25519-public"
)

// SignatureReserve is the most bytes of header that a signature takes.
const SignatureReserve = len(HeaderSignature) + len(": \r\n") + len(signatureVersion) + maxKeyID + len("  ") + 86

const (
	signatureVersion = "v1"
	maxKeyID         = 32
	leastSecret      = 16 // bytes of a HMAC secret
)

// What [Verify] answers of a message that is not to be trusted.
var (
	// ErrUnsigned says that there is no signature.
	ErrUnsigned = errors.New("message is not signed")
	// ErrUnknownKey says that it is signed with a key that is not among those
	// given: a wrong one, or one that came by rotation.
	ErrUnknownKey = errors.New("message is signed with a key that is not known")
	// ErrBadSignature says that the message is not as it was signed.
	ErrBadSignature = errors.New("signature does not fit the message")
)

// A Key signs messages, verifies them, or both. The zero value does neither.
type Key struct {
	// ID tells keys apart: the newest signs, and older ones verify until what
	// they signed is gone from the stream.
	ID      string
	kind    string
	secret  []byte // of KindHMAC
	private ed25519.PrivateKey
	public  ed25519.PublicKey
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// NewKey makes a key of [KindHMAC] or [KindEd25519].
func NewKey(kind, id string) (Key, error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	return parseKey(id, kind, base64.StdEncoding.EncodeToString(secret))
}

// ParseKeys reads the text of a key file: a line a key, of an id, a kind and
// base64, with blanks between; an empty line or one that begins with # is
// nothing. For [KindHMAC] the base64 is of a secret of 16 bytes or more, for
// [KindEd25519] of a seed of 32 bytes, for [KindEd25519Public] of the public
// key. The error names the line and repeats nothing of it.
func ParseKeys(text []byte) ([]Key, error) {
	var keys []Key
	for i, line := range bytes.Split(text, []byte("\n")) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: want an id, a kind and base64, such as: k1 %s AbCd…", i+1, KindHMAC)
		}
		k, err := parseKey(fields[0], fields[1], fields[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if slices.ContainsFunc(keys, func(other Key) bool { return other.ID == k.ID }) {
			return nil, fmt.Errorf("line %d: the id is that of an earlier line", i+1)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key; want a line of an id, a kind and base64")
	}
	return keys, nil
}

// ParseSigningKey reads a key file that holds the one key that signs.
func ParseSigningKey(text []byte) (Key, error) {
	keys, err := ParseKeys(text)
	switch {
	case err != nil:
		return Key{}, err
	case len(keys) > 1:
		return Key{}, fmt.Errorf("there are %d keys, and one signs; older ones are for those who verify", len(keys))
	case !keys[0].signs():
		return Key{}, errors.New("a public key does not sign; give the one that it was made of")
	}
	return keys[0], nil
}

func parseKey(id, kind, encoded string) (Key, error) {
	if !keyID.MatchString(id) {
		return Key{}, errors.New("the id is not 1 to 32 letters, digits, - or _")
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return Key{}, errors.New("the key is not base64")
	}
	k := Key{ID: id, kind: kind}
	switch kind {
	case KindHMAC:
		if len(raw) < leastSecret {
			return Key{}, fmt.Errorf("the secret has %d bytes; use %d or more", len(raw), leastSecret)
		}
		k.secret = raw
	case KindEd25519:
		if len(raw) != ed25519.SeedSize {
			return Key{}, fmt.Errorf("the seed has %d bytes, want %d", len(raw), ed25519.SeedSize)
		}
		k.private = ed25519.NewKeyFromSeed(raw)
		k.public, _ = k.private.Public().(ed25519.PublicKey)
	case KindEd25519Public:
		if len(raw) != ed25519.PublicKeySize {
			return Key{}, fmt.Errorf("the public key has %d bytes, want %d", len(raw), ed25519.PublicKeySize)
		}
		k.public = raw
	default:
		return Key{}, fmt.Errorf("the kind is not %s, %s or %s", KindHMAC, KindEd25519, KindEd25519Public)
	}
	return k, nil
}

func (k *Key) signs() bool { return k.secret != nil || k.private != nil }

// String names the key and shows nothing of it.
func (k Key) String() string { return k.ID + " " + k.kind }

// GoString does so where a whole value is printed.
func (k Key) GoString() string { return "envelope.Key{" + k.String() + "}" }

// Line is the key as a line of a key file, with its secret.
func (k Key) Line() string {
	raw := k.secret
	switch {
	case k.private != nil:
		raw = k.private.Seed()
	case k.kind == KindEd25519Public:
		raw = k.public
	}
	return k.ID + " " + k.kind + " " + base64.StdEncoding.EncodeToString(raw)
}

// Public is what those who verify need: of an Ed25519 key its public half, of
// another the key itself.
func (k Key) Public() Key {
	if k.private == nil {
		return k
	}
	return Key{ID: k.ID, kind: KindEd25519Public, public: k.public}
}

// Sign gives the value of [HeaderSignature] for a message as it is sent; the
// key must be one that signs. Headers that begin with Nats- need not be
// complete: beside the event's id they are not signed.
func (k Key) Sign(subject, msgID string, headers []Header, body []byte) string {
	list := make([]Header, 0, len(headers))
	for _, h := range headers {
		if h.Name == HeaderEventID {
			msgID = h.Value
		}
		list = append(list, h)
	}
	return signatureVersion + " " + k.ID + " " + base64.RawURLEncoding.EncodeToString(k.sign(subject, msgID, list, body))
}

func (k *Key) sign(subject, id string, headers []Header, body []byte) []byte {
	if k.private != nil {
		return ed25519.Sign(k.private, digest(sha256.New(), subject, id, headers, body))
	}
	return digest(hmac.New(sha256.New, k.secret), subject, id, headers, body)
}

// Verify says whether a received message is as the owner of one of the keys
// signed it: nil, [ErrUnsigned], [ErrUnknownKey] or [ErrBadSignature].
func Verify(keys []Key, subject string, headers map[string][]string, body []byte) error {
	value := headers[HeaderSignature]
	if len(value) == 0 {
		return ErrUnsigned
	}
	parts := strings.Split(value[0], " ")
	if len(value) > 1 || len(parts) != 3 || parts[0] != signatureVersion {
		return ErrBadSignature
	}
	at := slices.IndexFunc(keys, func(k Key) bool { return k.ID == parts[1] })
	if at < 0 {
		return ErrUnknownKey
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return ErrBadSignature
	}
	var list []Header
	for name, values := range headers {
		for _, v := range values {
			list = append(list, Header{Name: name, Value: v})
		}
	}
	id := headers[HeaderEventID]
	if len(id) == 0 {
		id = headers[HeaderMsgID]
	}
	if len(id) != 1 {
		return ErrBadSignature
	}
	k := &keys[at]
	if k.public != nil {
		if ed25519.Verify(k.public, digest(sha256.New(), subject, id[0], list, body), signature) {
			return nil
		}
		return ErrBadSignature
	}
	if k.secret != nil && hmac.Equal(signature, k.sign(subject, id[0], list, body)) {
		return nil
	}
	return ErrBadSignature
}

// digest hashes what is signed, see docs/message.md. It sorts headers.
func digest(h hash.Hash, subject, id string, headers []Header, body []byte) []byte {
	headers = slices.DeleteFunc(headers, func(h Header) bool {
		return h.Name == HeaderSignature || hasPrefixFold(h.Name, "Nats-")
	})
	slices.SortFunc(headers, func(a, b Header) int {
		return strings.Compare(a.Name+"\x00"+a.Value, b.Name+"\x00"+b.Value)
	})
	b := append([]byte(nil), "walrelay signature "+signatureVersion+"\n"...)
	part := func(s string) {
		b = strconv.AppendInt(b, int64(len(s)), 10)
		b = append(b, ':')
		b = append(b, s...)
		b = append(b, ',')
	}
	part(subject)
	part(id)
	for _, header := range headers {
		part(header.Name)
		part(header.Value)
	}
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, ':')
	_, _ = h.Write(b) // a hash never fails
	_, _ = h.Write(body)
	return h.Sum(nil)
}
