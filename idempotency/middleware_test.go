package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/walrelay/walrelay/idempotency"
)

// A service counts what its handler does, behind the middleware.
type service struct {
	*httptest.Server
	runs atomic.Int32
}

func serve(t *testing.T, s *store, change func(*idempotency.MiddlewareConfig), handler http.HandlerFunc) *service {
	t.Helper()
	cfg := idempotency.MiddlewareConfig{Store: s, Caller: func(r *http.Request) string { return r.Header.Get("Caller") }}
	if change != nil {
		change(&cfg)
	}
	middleware, err := idempotency.Middleware(cfg)
	if err != nil {
		t.Fatal(err)
	}
	svc := &service{}
	svc.Server = httptest.NewServer(middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		svc.runs.Add(1)
		handler(w, r)
	})))
	t.Cleanup(svc.Close)
	t.Cleanup(svc.Client().CloseIdleConnections)
	return svc
}

type request struct {
	method, path, caller, body string
	keys                       []string
}

// send gives status, body and headers; the defaults make a good request.
func (s *service) send(t *testing.T, r request) (int, string, http.Header) {
	t.Helper()
	if r.method == "" {
		r.method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), r.method, s.URL+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Idempotency-Key"] = r.keys
	if r.caller != "-" {
		req.Header.Set("Caller", "c"+r.caller)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func created(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call, _ := idempotency.FromContext(r.Context())
	w.Header().Set("Location", "/orders/1")
	w.Header().Set("Set-Cookie", "secret")
	w.WriteHeader(http.StatusCreated)
	w.Header().Set("Too-Late", "1")
	_, _ = fmt.Fprintf(w, "%s by %s", body, call.Key)
}

func TestARepeatedRequestGetsTheStoredResponse(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		svc := serve(t, s, nil, created)
		for i, key := range []string{`"k\"1"`, ` "k\"1" `} {
			status, body, header := svc.send(t, request{body: "order", keys: []string{key}})
			if status != http.StatusCreated || body != `order by k"1` || header.Get("Location") != "/orders/1" || header.Get("Too-Late") != "" {
				t.Errorf("request %d: %d %s %v, want the handler's response", i, status, body, header)
			}
			if got, want := header.Get(idempotency.HeaderReplayed), []string{"", "true"}[i]; got != want {
				t.Errorf("request %d: %s = %q, want %q", i, idempotency.HeaderReplayed, got, want)
			}
			if got, want := header.Get("Set-Cookie"), []string{"secret", ""}[i]; got != want {
				t.Errorf("request %d: Set-Cookie = %q, want %q", i, got, want)
			}
			if got := header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
				t.Errorf("request %d: Content-Type = %q", i, got)
			}
		}
		if svc.runs.Load() != 1 {
			t.Errorf("the handler ran %d times, want once", svc.runs.Load())
		}
	})
}

func TestTheSameKeyIsAnotherOneForAnotherCaller(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		svc := serve(t, s, nil, created)
		for i, caller := range []string{"a", "b", strings.Repeat("é", 60), strings.Repeat("é", 59) + "e"} {
			if status, _, header := svc.send(t, request{caller: caller, keys: []string{"k"}}); status != http.StatusCreated || header.Get(idempotency.HeaderReplayed) != "" {
				t.Errorf("caller %d: %d %v, want a run of its own", i, status, header)
			}
		}
		if status, _, _ := svc.send(t, request{caller: "-", keys: []string{"k"}}); status != http.StatusUnauthorized {
			t.Errorf("no caller: %d, want 401", status)
		}
	})
}

func TestMalformedAndForeignRequestsGetTheStatusOfTheDraft(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		svc := serve(t, s, func(c *idempotency.MiddlewareConfig) { c.MaxBodyBytes = 10 }, created)
		if status, _, _ := svc.send(t, request{keys: []string{"used"}, path: "/a", body: "x"}); status != http.StatusCreated {
			t.Fatalf("first request: %d", status)
		}
		for name, tc := range map[string]struct {
			request
			want int
		}{
			"no key":         {request{}, 400},
			"two keys":       {request{keys: []string{"a", "b"}}, 400},
			"empty":          {request{keys: []string{""}}, 400},
			"empty string":   {request{keys: []string{`""`}}, 400},
			"not closed":     {request{keys: []string{`"a`}}, 400},
			"after the end":  {request{keys: []string{`"a";b`}}, 400},
			"bad escape":     {request{keys: []string{`"a\b"`}}, 400},
			"list":           {request{keys: []string{`a, b`}}, 400},
			"not ASCII":      {request{keys: []string{`"é"`}}, 400},
			"too long":       {request{keys: []string{strings.Repeat("k", 256)}}, 400},
			"longest":        {request{keys: []string{strings.Repeat("k", 255)}}, 201},
			"large body":     {request{keys: []string{"large"}, body: "12345678901"}, 413},
			"largest body":   {request{keys: []string{"largest"}, body: "1234567890"}, 201},
			"other body":     {request{keys: []string{"used"}, path: "/a", body: "y"}, 422},
			"other path":     {request{keys: []string{"used"}, path: "/b", body: "x"}, 422},
			"other query":    {request{keys: []string{"used"}, path: "/a?q=1", body: "x"}, 422},
			"other method":   {request{keys: []string{"used"}, path: "/a", body: "x", method: http.MethodPatch}, 422},
			"foreign method": {request{method: http.MethodPut}, 201},
		} {
			status, body, header := svc.send(t, tc.request)
			if status != tc.want {
				t.Errorf("%s: %d %s, want %d", name, status, body, tc.want)
			}
			if status < 400 {
				continue
			}
			var p struct{ Title, Detail string }
			if err := json.Unmarshal([]byte(body), &p); err != nil || p.Title == "" || p.Detail == "" || header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %s %v is no problem details", name, body, header)
			}
		}
	})
}

func TestARequestThatIsRunningIsAConflict(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		running, release := make(chan struct{}), make(chan struct{})
		svc := serve(t, s, nil, func(http.ResponseWriter, *http.Request) {
			close(running)
			<-release
		})
		first := make(chan int)
		go func() {
			status, _, _ := svc.send(t, request{keys: []string{"k"}})
			first <- status
		}()
		<-running
		status, _, header := svc.send(t, request{keys: []string{"k"}})
		if status != http.StatusConflict || header.Get("Retry-After") == "" {
			t.Errorf("second request: %d %v, want 409 with Retry-After", status, header)
		}
		close(release)
		if got := <-first; got != http.StatusOK {
			t.Errorf("first request: %d, want 200", got)
		}
	})
}

func TestAResponseThatDidNothingIsNotStored(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		var svc *service
		svc = serve(t, s, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader([]int{0, 503, 429, 500}[svc.runs.Load()])
		})
		for i, want := range []int{503, 429, 500, 500} {
			if status, _, _ := svc.send(t, request{keys: []string{"k"}}); status != want {
				t.Errorf("request %d: %d, want %d", i, status, want)
			}
		}
		if svc.runs.Load() != 3 {
			t.Errorf("the handler ran %d times, want 3", svc.runs.Load())
		}
	})
}

func TestAHandlerThatDiedRunsAgainOnlyIfItIsRepeatable(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		for _, repeatable := range []bool{false, true} {
			var svc *service
			svc = serve(t, s, func(c *idempotency.MiddlewareConfig) { c.Repeatable = repeatable }, func(w http.ResponseWriter, r *http.Request) {
				if svc.runs.Load() == 1 {
					panic(http.ErrAbortHandler)
				}
				created(w, r)
			})
			key := []string{fmt.Sprint("k", repeatable)}
			if status, _, _ := svc.send(t, request{keys: key}); status != 0 {
				t.Errorf("request that died: %d, want no response", status)
			}
			want := map[bool]int{false: http.StatusConflict, true: http.StatusCreated}[repeatable]
			if status, body, _ := svc.send(t, request{keys: key}); status != want {
				t.Errorf("repeatable=%t: %d %s, want %d", repeatable, status, body, want)
			}
		}
	})
}

func TestALargeResponseReachesTheFirstCallerAlone(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		svc := serve(t, s, func(c *idempotency.MiddlewareConfig) { c.MaxResponseBytes = 10 }, func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				_, _ = io.WriteString(w, "abcd")
			}
		})
		if status, body, _ := svc.send(t, request{keys: []string{"k"}}); status != 200 || body != strings.Repeat("abcd", 10) {
			t.Errorf("first request: %d %s", status, body)
		}
		if status, body, _ := svc.send(t, request{keys: []string{"k"}}); status != 409 || !strings.Contains(body, "status 200") {
			t.Errorf("second request: %d %s, want 409 that says it was done", status, body)
		}
	})
}

func TestTheHandlerRunsToItsEndThoughTheClientHangsUp(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		running, gone := make(chan struct{}), make(chan struct{})
		svc := serve(t, s, nil, func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-gone
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context: %v, want none", err)
			}
			created(w, r)
		})
		ctx, hangUp := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, svc.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Caller", "c")
		go func() {
			<-running
			hangUp()
		}()
		if resp, err := svc.Client().Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("the hung up request has a response")
		}
		close(gone)
		for status := 409; status == 409; {
			var header http.Header
			status, _, header = svc.send(t, request{keys: []string{"k"}})
			if status != 409 && (status != 201 || header.Get(idempotency.HeaderReplayed) != "true") {
				t.Errorf("the repeat: %d %v, want the stored response", status, header)
			}
		}
	})
}

func TestAMiddlewareWithoutACallerIsRefused(t *testing.T) {
	t.Parallel()
	_, err := idempotency.Middleware(idempotency.MiddlewareConfig{})
	if err == nil || !strings.Contains(err.Error(), "Caller") || !strings.Contains(err.Error(), "Store") {
		t.Errorf("Middleware of nothing: %v, want both problems", err)
	}
}
