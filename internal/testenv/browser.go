package testenv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// A Browser is a headless Chromium that is driven by its DevTools protocol, over
// a pair of pipes: messages of JSON with a zero byte behind each.
type Browser struct {
	run  *run
	in   *os.File
	out  *os.File
	log  string
	done chan struct{} // the reader has ended

	mu       sync.Mutex
	number   int
	waiting  map[int]chan devAnswer
	sessions map[string]*Tab
	err      error // why no more answers come
}

type devAnswer struct {
	result json.RawMessage
	err    error
}

type devMessage struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// StartBrowser starts it. The Env stops it.
func (e *Env) StartBrowser(ctx context.Context) (*Browser, error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	program, err := exec.LookPath("chromium")
	if err != nil {
		return nil, errors.New("chromium is not installed; run `make deps`, or install the package chromium")
	}
	folder, err := e.folder("chromium")
	if err != nil {
		return nil, err
	}
	b := &Browser{log: filepath.Join(folder, "chromium.log"), waiting: map[int]chan devAnswer{}, sessions: map[string]*Tab{}, done: make(chan struct{})}
	log, err := os.Create(b.log)
	if err != nil {
		return nil, fmt.Errorf("make chromium's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the process has its own handle
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to chromium: %w", err)
	}
	defer theirIn.Close() //nolint:errcheck // likewise
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a pipe from chromium: %w", err), in.Close())
	}
	defer theirOut.Close() //nolint:errcheck // likewise
	b.in, b.out = in, out
	// It is root where tests are, which its sandbox does not allow; it opens
	// nothing but our own page. It is kept from asking for anything else.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(folder, "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "HOME="+folder)
	if b.run, err = e.watch(cmd); err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	e.mu.Lock()
	e.children = append(e.children, b.run.id)
	e.mu.Unlock()
	go b.read()
	if _, err := b.call(ctx, "", "Browser.getVersion", nil); err != nil {
		b.Close()
		return nil, fmt.Errorf("start chromium: %w%s", err, logTail(b.log))
	}
	return b, nil
}

// Close ends it and waits for that.
func (b *Browser) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = b.call(ctx, "", "Browser.close", nil) // it may be gone
	select {
	case <-b.run.exited:
	case <-ctx.Done():
		b.run.id.signal(9)
		<-b.run.exited
	}
	_ = b.in.Close()
	_ = b.out.Close()
	<-b.done
}

func (b *Browser) read() {
	defer close(b.done)
	reader := bufio.NewReaderSize(b.out, 1<<20)
	for {
		text, err := reader.ReadBytes(0)
		if err != nil {
			b.end(err)
			return
		}
		var m struct {
			devMessage
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if m.ID == 0 {
			if tab := b.sessions[m.SessionID]; tab != nil {
				tab.event(m.Method, m.Params)
			}
			b.mu.Unlock()
			continue
		}
		answer := devAnswer{result: m.Result}
		if m.Error != nil {
			answer.err = errors.New(m.Error.Message)
		}
		if to := b.waiting[m.ID]; to != nil {
			to <- answer
			delete(b.waiting, m.ID)
		}
		b.mu.Unlock()
	}
}

func (b *Browser) end(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		err = errors.New("chromium has ended")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	for id, to := range b.waiting {
		to <- devAnswer{err: err}
		delete(b.waiting, id)
	}
}

// call asks for one thing and waits for its answer.
func (b *Browser) call(ctx context.Context, session, method string, params any) (json.RawMessage, error) {
	answer := make(chan devAnswer, 1)
	b.mu.Lock()
	if b.err != nil {
		b.mu.Unlock()
		return nil, b.err
	}
	b.number++
	id := b.number
	b.waiting[id] = answer
	text, err := json.Marshal(devMessage{ID: id, SessionID: session, Method: method, Params: params})
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("tell chromium %s: %w", method, err)
	}
	select {
	case a := <-answer:
		if a.err != nil {
			return nil, fmt.Errorf("%s: %w", method, a.err)
		}
		return a.result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", method, ctx.Err())
	}
}
