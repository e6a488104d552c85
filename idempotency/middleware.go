package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// HeaderKey is the request header that carries the key.
	HeaderKey = "Idempotency-Key"
	// HeaderReplayed is true on a response that was stored before.
	HeaderReplayed = "Idempotency-Replayed"
)

// MiddlewareConfig says which requests are idempotent, and for whom.
type MiddlewareConfig struct {
	// Store keeps requests and responses. Required.
	Store *Store
	// Caller gives who asks, as authenticated: an account's id, not a
	// header that anybody can send. Required: two callers that choose the
	// same key must never see each other's responses. Empty, or longer than
	// 128 bytes, is answered with 401.
	Caller func(*http.Request) string
	// Methods are those that are made idempotent. None means POST and
	// PATCH; others pass through.
	Methods []string
	// Optional lets requests without a key pass through, unprotected. The
	// default answers them with 400.
	Optional bool
	// MaxBodyBytes bounds the request's body, which is read before the
	// handler runs. Zero means 1 MiB. A larger one is answered with 413.
	MaxBodyBytes int64
	// MaxResponseBytes bounds the body that is stored. Zero means 1 MiB. A
	// larger one reaches the first caller; a repeat is told that it is gone.
	MaxResponseBytes int
	// Lease is how long the handler may take; its context ends with it.
	// Zero means one minute.
	Lease time.Duration
	// Repeatable says that the handler may run again for a key whose first
	// run has died, since it does its work once by itself: CreateOrMatch, or
	// the key from [FromContext] in its own transaction. Otherwise such a
	// key is answered with 409 until somebody resolves it.
	Repeatable bool
	// NotDone says by its status that a response had no effect, so that a
	// repeat runs the handler again. Nil means 429 and 503. Every other
	// response is stored.
	NotDone func(status int) bool
	// Log gets what callers are not told. Nil means none.
	Log *slog.Logger
}

const (
	maxCaller     = 128
	maxRequestKey = 255
	defaultBytes  = 1 << 20
)

func (c *MiddlewareConfig) complete() error {
	var problems []error
	if c.Store == nil {
		problems = append(problems, errors.New("MiddlewareConfig.Store is nil; make one with New"))
	}
	if c.Caller == nil {
		problems = append(problems, errors.New("MiddlewareConfig.Caller is nil; give the authenticated caller's id, since keys of two callers must not meet"))
	}
	if c.MaxBodyBytes < 0 || c.MaxResponseBytes < 0 || c.Lease < 0 {
		problems = append(problems, errors.New("MiddlewareConfig: MaxBodyBytes, MaxResponseBytes and Lease are zero for their defaults, or above"))
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = defaultBytes
	}
	if c.MaxResponseBytes == 0 {
		c.MaxResponseBytes = defaultBytes
	}
	if c.NotDone == nil {
		c.NotDone = func(status int) bool {
			return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return errors.Join(problems...)
}

type callKey struct{}

// FromContext gives the call of the request that a handler behind [Middleware]
// is serving.
func FromContext(ctx context.Context) (Call, bool) {
	c, ok := ctx.Value(callKey{}).(Call)
	return c, ok
}

// Middleware makes requests with an Idempotency-Key header happen once, after
// the draft of the IETF: a repeat gets the stored response, 409 while the first
// one runs, 422 where the key came with another request, 400 where a key is
// missing or malformed. Errors are problem details (RFC 9457). The key is a
// string of structured fields, in quotes; a bare one is taken too.
//
// The handler runs to its end though the client hangs up: it will come back
// with the same key. Its response is sent when it is stored. Set-Cookie is not
// stored, nor are headers of the connection; streaming and hijacking are not
// for idempotent requests.
func Middleware(cfg MiddlewareConfig) (func(http.Handler) http.Handler, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(cfg.Methods, r.Method) || cfg.Optional && len(r.Header.Values(HeaderKey)) == 0 {
				next.ServeHTTP(w, r)
				return
			}
			cfg.serve(w, r, next)
		})
	}, nil
}

func (c *MiddlewareConfig) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, err := requestKey(r.Header.Values(HeaderKey))
	if err != nil {
		problem(w, http.StatusBadRequest, HeaderKey+" is missing or malformed", err.Error())
		return
	}
	caller := c.Caller(r)
	if caller == "" || len(caller) > maxCaller {
		problem(w, http.StatusUnauthorized, "The caller is not known", "Authenticate: idempotency keys belong to a caller.")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.MaxBodyBytes))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			problem(w, http.StatusRequestEntityTooLarge, "The body is too large", fmt.Sprintf("At most %d bytes are taken.", c.MaxBodyBytes))
			return
		}
		problem(w, http.StatusBadRequest, "The body could not be read", "Send the request again with the same key.")
		return
	}
	c.answer(w, r, next, c.Store.scopeOf(caller), key, body)
}

// scopeOf gives the scope of a caller, within the 255 bytes that the table
// takes.
func (s *Store) scopeOf(caller string) string {
	name := Key(caller)
	if len(name) > maxCaller {
		sum := sha256.Sum256([]byte(name))
		name = "=" + hex.EncodeToString(sum[:]) // no escaped name has an equals sign
	}
	return s.cfg.Scope + "/" + name
}

// forever is how long a handler that is repeatable by itself recognises a key.
const forever = 100 * 365 * 24 * time.Hour

// errNotDone is a response that MiddlewareConfig.NotDone has picked out.
var errNotDone = errors.New("the response says that nothing was done")

func (c *MiddlewareConfig) answer(w http.ResponseWriter, r *http.Request, next http.Handler, scope, key string, body []byte) {
	o := Options{Lease: c.Lease, Request: fingerprint(r, body)}
	if c.Repeatable {
		o.KeyHonouredFor = forever
	}
	var rec *recorder
	result, err := c.Store.do(context.WithoutCancel(r.Context()), scope, key, o,
		func(ctx context.Context, call Call) ([]byte, error) {
			rec = newRecorder(w, c.MaxResponseBytes)
			request := r.WithContext(context.WithValue(ctx, callKey{}, call))
			request.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(rec, request)
			if c.NotDone(rec.code()) && !rec.spilled {
				return nil, NotDone(errNotDone)
			}
			return json.Marshal(rec.response())
		})
	var progress *InProgressError
	switch {
	case rec != nil && rec.spilled:
		// It is on its way already.
		if err != nil {
			c.Log.WarnContext(r.Context(), "response of an idempotent request is not stored", slog.Any("err", err))
		}
	case err == nil && result.Replayed:
		replay(w, result.Value)
	case rec != nil && (err == nil || errors.Is(err, errNotDone) || errors.Is(err, ErrNotStored)):
		if err != nil && !errors.Is(err, errNotDone) {
			c.Log.WarnContext(r.Context(), "response of an idempotent request is not stored", slog.Any("err", err))
		}
		rec.send()
	case errors.As(err, &progress):
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusConflict, "A request with this key is in progress", "Try again later with the same key.")
	case errors.Is(err, ErrMismatch):
		problem(w, http.StatusUnprocessableEntity, "The key was used for another request", "Use a new key for a new request, and the same request with this one.")
	case errors.Is(err, ErrUncertain), errors.Is(err, ErrLeaseLost):
		c.Log.WarnContext(r.Context(), "outcome of an idempotent request is not known", slog.Any("err", err))
		problem(w, http.StatusConflict, "The outcome of the first request is not known", "Ask the service's operator, or look whether the request took effect.")
	default:
		c.Log.ErrorContext(r.Context(), "idempotent request could not be registered", slog.Any("err", err))
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusServiceUnavailable, "The request could not be registered", "Nothing was done. Try again with the same key.")
	}
}

// fingerprint is what must be the same in a repeat. Lengths keep the parts
// apart.
func fingerprint(r *http.Request, body []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.URL.RequestURI()), []byte(r.Header.Get("Content-Type")), body} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part))) // a hash takes everything
		h.Write(part)
	}
	return h.Sum(nil)
}

// requestKey reads the header: a string of RFC 8941, or a bare one.
func requestKey(values []string) (string, error) {
	if len(values) != 1 {
		return "", fmt.Errorf("Send one %s header, such as %s: \"8e03978e-40d5-43dd-bc93-6894a57f9324\".", HeaderKey, HeaderKey) //nolint:revive,staticcheck // a sentence for the caller
	}
	s := strings.Trim(values[0], " \t")
	quoted := strings.HasPrefix(s, `"`)
	if quoted {
		s = s[1:]
	}
	var b strings.Builder
	closed := false
	for i := 0; i < len(s) && !closed; i++ {
		c := s[i]
		switch {
		case c < ' ' || c > '~' || !quoted && strings.IndexByte(" \"\\,;", c) >= 0:
			return "", errors.New("A key is printable ASCII in quotation marks.") //nolint:revive,staticcheck // a sentence for the caller
		case quoted && c == '"':
			if i != len(s)-1 {
				return "", errors.New("Nothing may follow the closing quotation mark.") //nolint:revive,staticcheck // a sentence for the caller
			}
			closed = true
			continue
		case quoted && c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", errors.New("A backslash escapes a quotation mark or a backslash.") //nolint:revive,staticcheck // a sentence for the caller
			}
			c = s[i]
		}
		b.WriteByte(c)
	}
	switch key := b.String(); {
	case quoted && !closed:
		return "", errors.New("The closing quotation mark is missing.") //nolint:revive,staticcheck // a sentence for the caller
	case key == "" || len(key) > maxRequestKey:
		return "", errors.New("A key has 1 to " + strconv.Itoa(maxRequestKey) + " characters.")
	default:
		return key, nil
	}
}

// problem answers with problem details.
func problem(w http.ResponseWriter, status int, title, detail string) {
	body, err := json.Marshal(map[string]any{"type": "about:blank", "title": title, "status": status, "detail": detail})
	if err != nil { // not with these types
		body = nil
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller may be gone
}
