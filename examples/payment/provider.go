package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
)

// A provider charges cards, as somebody else's service does: it works, and its
// answer may get lost.
type provider struct {
	*httptest.Server
	// honoursKeys and canBeAsked are what its manual promises.
	honoursKeys, canBeAsked bool

	mu      sync.Mutex
	charges map[string]int    // by reference
	answers map[string]string // by idempotency key
	lose    int               // that many answers are lost after the work is done
}

func newProvider(honoursKeys, canBeAsked bool) *provider {
	p := &provider{honoursKeys: honoursKeys, canBeAsked: canBeAsked, charges: map[string]int{}, answers: map[string]string{}}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /charges/{reference}", p.charge)
	routes.HandleFunc("GET /charges/{reference}", p.find)
	p.Server = httptest.NewServer(routes)
	return p
}

func (p *provider) charge(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reference := r.PathValue("reference")
	key := r.Header.Get("Idempotency-Key")
	answer, known := p.answers[key]
	if !p.honoursKeys || !known {
		if reference == "order-declined" {
			http.Error(w, "insufficient funds", http.StatusPaymentRequired)
			return
		}
		p.charges[reference]++
		answer = "charge-of-" + reference
		p.answers[key] = answer
	}
	if p.lose > 0 {
		p.lose--
		panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to cut the connection: charged, and no answer
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

func (p *provider) find(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reference := r.PathValue("reference")
	switch {
	case !p.canBeAsked:
		http.Error(w, "no such service", http.StatusNotImplemented)
	case p.charges[reference] == 0:
		http.NotFound(w, r)
	default:
		_ = json.NewEncoder(w).Encode("charge-of-" + reference) // the client may be gone
	}
}

// loseAnswers makes the provider do its work and lose the next answers.
func (p *provider) loseAnswers(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

func (p *provider) charged(reference string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.charges[reference]
}
