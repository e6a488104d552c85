package idempotency

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"strings"
)

// A response is what is stored of one.
type response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body,omitempty"`
	// Gone says that the body was too large to be kept.
	Gone bool `json:"gone,omitempty"`
}

// A recorder holds a response back until it is stored. When the body grows
// beyond max, it lets go: what was held is sent, and the rest passes through.
type recorder struct {
	w       http.ResponseWriter
	max     int
	header  http.Header
	sent    http.Header // as it was at WriteHeader; later changes do not count
	status  int
	body    bytes.Buffer
	spilled bool
}

var _ http.ResponseWriter = (*recorder)(nil)

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	return &recorder{w: w, max: limit, header: make(http.Header)}
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status != 0 || status < http.StatusOK { // informational ones are not kept
		return
	}
	r.status, r.sent = status, r.header.Clone()
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if !r.spilled && r.body.Len()+len(p) <= r.max {
		return r.body.Write(p)
	}
	if !r.spilled {
		r.spilled = true
		r.send()
		r.body.Reset()
	}
	return r.w.Write(p)
}

// code is the status of the response.
func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

// headers are those of the response, if the handler has written none as they
// are at its end.
func (r *recorder) headers() http.Header {
	if r.status == 0 {
		return r.header
	}
	return r.sent
}

// response is what to store.
func (r *recorder) response() response {
	h := r.headers().Clone()
	if h.Get("Content-Type") == "" && r.body.Len() > 0 {
		h.Set("Content-Type", http.DetectContentType(r.body.Bytes())) // as net/http would
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Content-Length", "Date", "Set-Cookie",
	} {
		h.Del(name)
	}
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) || name != textproto.CanonicalMIMEHeaderKey(name) {
			delete(h, name)
		}
	}
	return response{Status: r.code(), Header: h, Body: bytes.Clone(r.body.Bytes()), Gone: r.spilled}
}

// send writes what was recorded to the caller.
func (r *recorder) send() {
	maps.Copy(r.w.Header(), r.headers())
	r.w.WriteHeader(r.code())
	_, _ = r.w.Write(r.body.Bytes()) // the caller may be gone
}

// replay sends a stored response.
func replay(w http.ResponseWriter, stored []byte) {
	var r response
	if err := json.Unmarshal(stored, &r); err != nil || r.Status < http.StatusOK {
		problem(w, http.StatusConflict, "The response cannot be read", "The request was carried out; its stored response is of another version.")
		return
	}
	w.Header().Set(HeaderReplayed, "true")
	if r.Gone {
		problem(w, http.StatusConflict, "The response is gone",
			fmt.Sprintf("The request was carried out with status %d; its response was too large to be kept.", r.Status))
		return
	}
	maps.Copy(w.Header(), r.Header)
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body) // the caller may be gone
}
