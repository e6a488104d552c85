package testenv

import "os/exec"

// A run is one life of a server process.
type run struct {
	id     processID
	exited chan struct{} // closed when the process was waited for
}

// watch starts a server process; its goroutine ends with the process.
func (e *Env) watch(cmd *exec.Cmd) (*run, error) {
	id, err := e.launch(cmd)
	if err != nil {
		return nil, err
	}
	r := &run{id: id, exited: make(chan struct{})}
	go func() {
		defer close(r.exited)
		_ = cmd.Wait() // how it ended is in its log
	}()
	return r, nil
}

// live is the run, or nil when it is over or never was.
func (r *run) live() *run {
	if r == nil {
		return nil
	}
	select {
	case <-r.exited:
		return nil
	default:
		return r
	}
}
