package admin_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const pagePatience = 30 * time.Second

// A scene is a relay's status that a test sets, with an hour before it.
type scene struct {
	url  string
	stop func() // the listener ends

	mu sync.Mutex
	st walrelay.Status
}

func (s *scene) status() walrelay.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.st
	st.At = time.Now()
	moment := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(st.At.Sub(s.st.At))
		}
	}
	if st.SlotState != nil { // it goes on being looked at
		slot := *st.SlotState
		moment(&slot.LookedAt)
		st.SlotState = &slot
	}
	return st
}

func (s *scene) set(st walrelay.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st = st
}

// stage serves a scene, whose last hour was busy in waves with a pause.
func stage(t *testing.T, st walrelay.Status) *scene {
	t.Helper()
	s := &scene{st: st}
	point := st
	point.Latency = walrelay.LatencyStatus{Bounds: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1}, Counts: make([]uint64, 9)}
	past := admin.NewHistory(func() walrelay.Status { return point })
	for i := 361; i > 0; i-- {
		point.At = st.At.Add(-time.Duration(i) * 10 * time.Second)
		out := i > 150 && i < 172
		point.State, point.Streams = walrelay.StateRelaying, []walrelay.StreamStatus{flowing()}
		n := uint64(2200 + 1400*math.Sin(float64(i)/23) + 500*math.Sin(float64(i)/5) + 200*math.Sin(float64(i)))
		if out {
			point.State, n = walrelay.StateWaiting, 0
		}
		point.Counters.Stored += n
		counts := slices.Clone(point.Latency.Counts)
		counts[1] += n / 3
		counts[2] += n / 2
		counts[4+(i/17)%3] += n / 40
		point.Latency.Counts = counts
		past.Take()
	}
	s.st.Counters.Stored = point.Counters.Stored
	addr := "127.0.0.1:0"
	site := &site{t: t}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		admin.Serve(ctx, admin.Access{Addr: addr}, admin.New(s.status, admin.Build{}, past), slog.New(slog.NewTextHandler(site, nil)))
	}()
	s.stop = func() { cancel(); <-done }
	t.Cleanup(s.stop)
	envtest.Eventually(t, pagePatience, func() error {
		m := servedAt.FindStringSubmatch(site.text())
		if m == nil {
			return fmt.Errorf("not served yet: %s", site.text())
		}
		addr = m[1]
		return nil
	})
	s.url = "http://" + addr + "/"
	return s
}

func idle() walrelay.Status {
	st := relaying()
	zero := 0.0
	room, age := int64(60<<30), int64(412)
	st.Since, st.BehindSeconds, st.ReceivedLSN, st.ConfirmedLSN = st.At.Add(-26*time.Hour), &zero, "0/5A3F1C8", "0/5A3F1C8"
	st.SlotState.RetainedBytes, st.SlotState.SafeBytes, st.SlotState.CatalogXminAge = 73_400, &room, &age
	st.NATS = walrelay.NATSStatus{Connected: true, Server: "nats://127.0.0.1:4222", Since: st.Since}
	st.Streams[0].LastSequence, st.Streams[0].StoredAt = 812_345, st.At.Add(-time.Hour)
	st.Streams[0].Fill = &walrelay.FillStatus{LookedAt: st.At, Messages: 640_012, Bytes: 311 << 20, MaxBytes: 1 << 30, Refuses: true}
	st.Gaps = &walrelay.GapsStatus{LookedAt: st.At, Open: []walrelay.GapStatus{}, Newest: &walrelay.GapStatus{ID: 1, Kind: "unseen", State: "healed", EndedAt: st.At.Add(-3 * time.Hour)}}
	st.Counters = walrelay.Counters{Transactions: 402_118, Rows: 812_345, Stored: 812_345, StoredBytes: 256 << 20, Sessions: 3, Healed: 4}
	st.Retention = &walrelay.RetentionStatus{LookedAt: st.At, Deleted: 172_000}
	return st
}

func busy() walrelay.Status {
	st := idle()
	lag := 0.012
	st.LagSeconds = &lag
	st.Streams[0].InFlight, st.Streams[0].Queued, st.Streams[0].Bytes, st.Streams[0].StoredAt = 412, 18, 300_000, st.At
	return st
}

func withoutNATS() walrelay.Status {
	st := idle()
	lag := 754.0
	st.LagSeconds, st.BehindSeconds = &lag, &lag
	s := &st.Streams[0]
	s.State, s.Flowing, s.Reason, s.Fill = "waiting", false, "no connection to NATS: dial tcp 127.0.0.1:4222: connect: connection refused", nil
	s.InFlight, s.Queued, s.Bytes, s.Since = 1024, 300, 900_000, st.At.Add(-2*time.Second) // the newest attempt
	s.TroubleSince = st.At.Add(-754 * time.Second)
	st.NATS = walrelay.NATSStatus{Server: "nats://127.0.0.1:4222", LastError: "dial tcp 127.0.0.1:4222: connect: connection refused", Since: s.TroubleSince}
	st.SlotState.RetainedBytes = 48 << 20
	return st
}

func manyTroubles() walrelay.Status {
	st := busy()
	st.State, st.Reason = walrelay.StateHalted, "gap 7 (slot), found at 2026-11-29T23:10:00Z, is open: 41200 events may be in no stream: publish what is missing with: walrelay replay --missing; or let it be with: walrelay replay --missing --discard"
	st.DeadLetters = &walrelay.DeadLetters{LookedAt: st.At, Open: 14, ByReason: map[string]int{"too_large": 12, "id in use": 2}}
	st.Gaps.Open = []walrelay.GapStatus{{ID: 7, Kind: "slot", State: "open", Events: 41200, FoundAt: st.At.Add(-3 * time.Hour)}}
	room := int64(700 << 20)
	st.SlotState.SafeBytes, st.SlotState.RetainedBytes = &room, 12<<30
	st.Streams[0].Fill.Bytes = 1020 << 20
	more := flowing()
	more.Name, more.Mechanism, more.LastSequence, more.Limit = "AUDIT-OF-ALL-THE-ORDERS-OF-THE-SHOP", "lanes", 99, "the stream removes messages: repeats beyond the duplicate window"
	st.Streams = append(st.Streams, more)
	st.Jobs = []walrelay.JobStatus{{ID: 9, Kind: "replay", State: "running", Looked: 1000, Sent: 400, Stored: 380, At: st.At}}
	st.LastError, st.LastErrorAt = "<img src=x onerror=alert(1)>: PostgreSQL closed the connection", st.At.Add(-time.Minute)
	return st
}

func standby() walrelay.Status {
	st := relaying()
	st.Since = st.At.Add(-time.Minute)
	st.State, st.Reason = walrelay.StateStandby, `slot "shop" is held by pid 4711 (walrelay shop) since 2026-11-30T00:00:00Z; this relay takes over when it is released`
	st.SlotState, st.LagSeconds, st.LagBytes, st.DeadLetters = nil, nil, nil, nil
	st.Streams[0].State, st.Streams[0].Flowing, st.Streams[0].LastSequence = "idle", false, 0
	return st
}

func open(t *testing.T, b *testenv.Browser, url string, screen testenv.Screen) *testenv.Tab {
	t.Helper()
	tab, err := b.Open(t.Context(), url, screen)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func run[T any](t *testing.T, tab *testenv.Tab, expression string) (v T) {
	t.Helper()
	if err := tab.Run(t.Context(), expression, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// shows waits until the page has rendered a phase.
func shows(t *testing.T, tab *testenv.Tab, phase walrelay.Phase) {
	t.Helper()
	envtest.Eventually(t, pagePatience, func() error {
		var got string
		if err := tab.Run(t.Context(), "document.documentElement.dataset.rendered || document.body.innerText", &got); err != nil || got != string(phase) {
			return fmt.Errorf("the page shows %q, want phase %s; %w", got, phase, err)
		}
		return nil
	})
}

func screens() map[string]testenv.Screen {
	return map[string]testenv.Screen{
		"desktop-light": {Width: 1280, Height: 900}, "desktop-dark": {Width: 1280, Height: 900, Dark: true},
		"phone-light": {Width: 360, Height: 740, Phone: true}, "phone-dark": {Width: 360, Height: 740, Phone: true, Dark: true},
	}
}

// The page in each state and on each screen: it fits, nothing is wrong with it in
// the eyes of the browser, and each colour can be read on its ground. It follows
// the relay without being loaded again.
func TestTheStatusPageFitsEachScreenAndCanBeRead(t *testing.T) {
	t.Parallel()
	s := stage(t, idle())
	tab := open(t, envtest.Browser(t), s.url, testenv.Screen{Width: 1280, Height: 900})
	for _, c := range []struct {
		name  string
		st    walrelay.Status
		since time.Duration // before now the phase began; 0: it is not said
		says  []string
	}{
		{"idle", idle(), time.Hour, []string{"Idle: everything is in place", "slot is held", "No dead letter is open"}},
		{"busy", busy(), 0, []string{"Events are delivered", "stores events", "412 in flight"}},
		{"nats-stopped", withoutNATS(), 754 * time.Second, []string{
			"Waiting: events stay safe in PostgreSQL", "no connection to NATS: dial tcp", "no connection", "13 min", "walrelay doctor --source shop",
		}},
		{"troubles", manyTroubles(), 26 * time.Hour, []string{
			"Halted: a decision is needed", "Gap 7 (slot) is open", "walrelay replay --missing --source shop", "walrelay replay --missing --dry-run --source shop",
			"walrelay deadletters list --reason too_large --source shop", `--reason "id in use"`, "The slot is about to be lost", "Stream SHOP is 100 % full", "Job 9: replay, running",
			"<img src=x onerror=alert(1)>",
		}},
		{"standby", standby(), time.Minute, []string{"Standing by: another relay delivers", "held by another", "is held by pid 4711", "Dead letters: not known now"}},
	} {
		s.set(c.st)
		shows(t, tab, c.st.Phase())
		text := strings.ReplaceAll(run[string](t, tab, "document.body.innerText + [...document.querySelectorAll('svg text')].map((e) => e.textContent).join(' ')"), "\u202f", " ")
		for _, want := range c.says {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the page does not say %q:\n%s", c.name, want, text)
			}
		}
		since := ";"
		if c.since > 0 {
			since = " since " + c.st.At.Add(-c.since).Local().Format(time.TimeOnly) + ";"
		}
		if got := run[string](t, tab, "document.getElementById('updated').textContent"); !strings.HasPrefix(got, string(c.st.Phase())+since) {
			t.Errorf("%s: the page says %q, want the phase to be %v old", c.name, got, c.since)
		}
		for screen, size := range screens() {
			if err := tab.Show(t.Context(), size); err != nil {
				t.Fatal(err)
			}
			run[any](t, tab, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))")
			if wide := run[int](t, tab, "document.documentElement.scrollWidth"); wide > size.Width {
				t.Errorf("%s on %s is %d pixels wide, want at most %d", c.name, screen, wide, size.Width)
			}
			if poor := run[[]string](t, tab, contrasts); len(poor) > 0 {
				t.Errorf("%s on %s: too little contrast: %s", c.name, screen, strings.Join(poor, "; "))
			}
			if screen == "desktop-light" || screen == "phone-dark" || c.name == "busy" {
				envtest.Picture(t, tab, c.name+"-"+screen)
			}
		}
	}
	if c := tab.Complaints(); len(c) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(c, "\n"))
	}
	for _, asked := range tab.Requests() {
		if !strings.HasPrefix(asked, s.url) && !strings.HasPrefix(asked, "data:") {
			t.Errorf("the page asked %s; nothing may come from elsewhere", asked)
		}
	}
}

// A person without a mouse or without sight gets all of it.
func TestTheStatusPageIsUsedByKeyboardAndByEar(t *testing.T) {
	t.Parallel()
	s := stage(t, manyTroubles())
	tab := open(t, envtest.Browser(t), s.url, testenv.Screen{Width: 1280, Height: 900})
	shows(t, tab, walrelay.PhaseHalted)
	nodes, err := tab.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := func(role, name string) {
		t.Helper()
		if !slices.ContainsFunc(nodes, func(n testenv.Node) bool { return n.Role == role && strings.Contains(n.Name, name) }) {
			t.Errorf("a screen reader finds no %s %q", role, name)
		}
	}
	for _, landmark := range []string{"banner", "main", "contentinfo", "navigation"} {
		has(landmark, "")
	}
	has("heading", "Halted: a decision is needed")
	for _, section := range []string{"What to do", "The way of an event", "The last hour", "Streams", "Dead letters, gaps and jobs"} {
		has("heading", section)
		has("region", section)
	}
	has("image", "PostgreSQL: slot is near its loss")
	has("slider", "From commit to stored")
	has("button", "Copy the command walrelay deadletters list")

	var reached []string
	for range 40 {
		if err := tab.Press(t.Context(), "Tab", 9); err != nil {
			t.Fatal(err)
		}
		where := run[string](t, tab, "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()")
		if ring := run[string](t, tab, "getComputedStyle(document.activeElement).outlineStyle"); ring == "none" && where != "" && run[bool](t, tab, "document.activeElement !== document.body") {
			t.Errorf("it is not to be seen that the focus is on %q", where)
		}
		reached = append(reached, where)
	}
	for _, want := range []string{"Skip to the state", "Copy the command walrelay replay --missing --source shop", "Events stored a second", "From commit to stored", "metrics"} {
		if !slices.Contains(reached, want) {
			t.Errorf("the key Tab does not lead to %q; it leads to %q", want, reached)
		}
	}
	run[any](t, tab, "(document.querySelector('#latency [role=slider]').focus(), null)")
	read := func() string {
		return run[string](t, tab, "document.activeElement.getAttribute('aria-valuetext')")
	}
	newest := read()
	if err := tab.Press(t.Context(), "Home", 36); err != nil {
		t.Fatal(err)
	}
	oldest := read()
	if err := tab.Press(t.Context(), "ArrowRight", 39); err != nil {
		t.Fatal(err)
	}
	if next := read(); newest == oldest || oldest == next || !strings.Contains(oldest, "half of all") {
		t.Errorf("the keys read %q, %q behind Home and %q behind an arrow, want three moments", newest, oldest, next)
	}
	// The page is asked again meanwhile: the focus stays.
	s.set(busy())
	shows(t, tab, walrelay.PhaseDelivering)
	if at := run[string](t, tab, "document.activeElement.getAttribute('aria-label')"); at != "From commit to stored" {
		t.Errorf("after the page was asked again the focus is on %q", at)
	}
}

// I10: a relay that does not answer is not shown as it was.
func TestTheStatusPageSaysWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	s := stage(t, busy())
	tab := open(t, envtest.Browser(t), s.url, testenv.Screen{Width: 800, Height: 600})
	shows(t, tab, walrelay.PhaseDelivering)
	s.stop()
	envtest.Eventually(t, pagePatience, func() error {
		var got string
		err := tab.Run(t.Context(), "document.getElementById('headline').textContent + '|' + document.title + '|' + document.body.hasAttribute('data-stale') + '|' + document.getElementById('verdict').dataset.level", &got)
		if got != "No answer from the relay|no answer – walrelay|true|unknown" {
			return fmt.Errorf("the page of a relay that is gone says %q; %w", got, err)
		}
		return nil
	})
}

func TestTheStatusPageLetsNothingElseRun(t *testing.T) {
	t.Parallel()
	answer := httptest.NewRecorder()
	handler(relaying()).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	policy := answer.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("policy %q lets too much through", policy)
	}
	page := answer.Body.String()
	for _, never := range []string{"innerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick=", "src="} {
		if strings.Contains(page, never) {
			t.Errorf("the page has %q", never)
		}
	}
}

// contrasts lists the texts whose colour is too near to that of their ground
// (WCAG: 4.5 to 1).
const contrasts = `(() => {
	const channel = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
	const luminance = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
	const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
	const over = (colors) => { pen.clearRect(0, 0, 1, 1); for (const c of colors) { pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); } return pen.getImageData(0, 0, 1, 1).data; };
	const grounds = (e) => { const all = []; for (; e; e = e.parentElement) { const g = e.closest('.node'); if (g && e !== g && e.tagName === 'text') { all.push(getComputedStyle(g.querySelector('rect')).fill); if (!e.classList.contains('line') && !e.classList.contains('word')) all.unshift(getComputedStyle(g.querySelector('.band')).fill); } all.push(getComputedStyle(e).backgroundColor); } return all.reverse(); };
	const poor = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
		if (!text || !e.checkVisibility() || ['SCRIPT', 'STYLE', 'title', 'NOSCRIPT'].includes(e.tagName) || e.classList.contains('skip')) continue;
		const ground = grounds(e), a = luminance(over(ground));
		const style = getComputedStyle(e), z = luminance(over([...ground, e instanceof SVGElement ? style.fill : style.color]));
		const ratio = (Math.max(a, z) + .05) / (Math.min(a, z) + .05);
		if (ratio < 4.5) poor.push(text.slice(0, 30) + ' ' + ratio.toFixed(2));
	}
	return poor;
})()`
