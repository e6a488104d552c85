package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// A Tab is one page of a [Browser].
type Tab struct {
	b       *Browser
	session string

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// A Screen is what a page is shown on.
type Screen struct {
	Width, Height int
	// Phone makes it a small screen with touch; Dark is what the person
	// prefers.
	Phone, Dark bool
}

// Open opens an address on a screen.
func (b *Browser) Open(ctx context.Context, url string, screen Screen) (*Tab, error) {
	var target struct {
		TargetID string `json:"targetId"`
	}
	if err := b.ask(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	t := &Tab{b: b}
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	if err := b.ask(ctx, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	t.session = attached.SessionID
	b.mu.Lock()
	b.sessions[t.session] = t
	b.mu.Unlock()
	for _, domain := range []string{"Page.enable", "Runtime.enable", "Log.enable", "Network.enable", "Accessibility.enable"} {
		if _, err := b.call(ctx, t.session, domain, nil); err != nil {
			return nil, err
		}
	}
	if err := t.Show(ctx, screen); err != nil {
		return nil, err
	}
	_, err := b.call(ctx, t.session, "Page.navigate", map[string]any{"url": url})
	return t, err
}

func (b *Browser) ask(ctx context.Context, session, method string, params, to any) error {
	result, err := b.call(ctx, session, method, params)
	if err != nil {
		return err
	}
	return json.Unmarshal(result, to)
}

// Show moves the page to another screen.
func (t *Tab) Show(ctx context.Context, s Screen) error {
	scale := 1.0
	if s.Phone {
		scale = 2
	}
	_, err := t.b.call(ctx, t.session, "Emulation.setDeviceMetricsOverride", map[string]any{
		"width": s.Width, "height": s.Height, "deviceScaleFactor": scale, "mobile": s.Phone,
	})
	scheme := "light"
	if s.Dark {
		scheme = "dark"
	}
	_, err2 := t.b.call(ctx, t.session, "Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	})
	return errors.Join(err, err2)
}

// Run evaluates an expression of JavaScript and gives its value.
func (t *Tab) Run(ctx context.Context, expression string, to any) error {
	var answer struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := t.b.ask(ctx, t.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if err != nil {
		return err
	}
	if e := answer.Exception; e != nil {
		return fmt.Errorf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if to == nil || len(answer.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, to)
}

// Press presses a key and lets it go.
func (t *Tab) Press(ctx context.Context, key string, code int) error {
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		_, err := t.b.call(ctx, t.session, "Input.dispatchKeyEvent", map[string]any{
			"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Picture gives the whole page as PNG, also what is below the screen's end.
func (t *Tab) Picture(ctx context.Context) ([]byte, error) {
	var shot struct {
		Data []byte `json:"data"`
	}
	err := t.b.ask(ctx, t.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	return shot.Data, err
}

// A Node is one thing that a screen reader finds.
type Node struct{ Role, Name string }

// Nodes gives what a screen reader finds, in its order.
func (t *Tab) Nodes(ctx context.Context) ([]Node, error) {
	type value struct {
		Value any `json:"value"`
	}
	var tree struct {
		Nodes []struct {
			Ignored bool   `json:"ignored"`
			Role    *value `json:"role"`
			Name    *value `json:"name"`
		} `json:"nodes"`
	}
	if err := t.b.ask(ctx, t.session, "Accessibility.getFullAXTree", nil, &tree); err != nil {
		return nil, err
	}
	var list []Node
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		one := Node{Role: fmt.Sprint(n.Role.Value)}
		if n.Name != nil {
			one.Name = fmt.Sprint(n.Name.Value)
		}
		list = append(list, one)
	}
	return list, nil
}

// Complaints are what the browser found wrong with the page so far: exceptions,
// errors on its console, and what its policy did not let it do.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, t.complaints...)
}

// Requests are the addresses that the page has asked so far.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, t.requests...)
}

func (t *Tab) event(method string, params json.RawMessage) {
	var text string
	switch method {
	case "Runtime.exceptionThrown":
		text = "exception: " + string(params)
	case "Log.entryAdded":
		var log struct {
			Entry struct{ Level, Text, URL string } `json:"entry"`
		}
		_ = json.Unmarshal(params, &log)
		if log.Entry.Level != "error" && log.Entry.Level != "warning" {
			return
		}
		text = log.Entry.Level + ": " + log.Entry.Text + " " + log.Entry.URL
	case "Runtime.consoleAPICalled":
		text = "console: " + string(params)
	case "Network.requestWillBeSent":
		var sent struct {
			Request struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		_ = json.Unmarshal(params, &sent)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.requests = append(t.requests, sent.Request.URL)
		return
	default:
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complaints = append(t.complaints, text)
}
