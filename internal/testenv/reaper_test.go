package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// victimVariable makes TestVictim start servers and wait for its death.
const victimVariable = "WALRELAY_TESTENV_VICTIM"

// TestVictim is the process that the tests below kill, not a test.
func TestVictim(t *testing.T) {
	how := os.Getenv(victimVariable)
	if how == "" {
		return
	}
	env, err := testenv.New()
	if err != nil {
		t.Fatal(err)
	}
	p, err := env.StartPostgres(t.Context(), testenv.PGConfig{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := env.StartNATS(t.Context(), testenv.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	child := osexec.CommandContext(context.WithoutCancel(t.Context()), "sleep", "1000")
	if err := env.Child(child); err != nil {
		t.Fatal(err)
	}
	if how == "paused" {
		must(t, p.Pause())
		must(t, n.Pause())
	}
	fmt.Println("victim", env.Dir(), p.Pid(), n.Pid(), child.Process.Pid)
	if how == "panic" {
		// Not in the test's goroutine, whose cleanup would still run. A test's
		// time limit is such a panic too.
		go panic("on purpose")
	}
	select {}
}

// startVictim returns the process, its folder and the processes it started.
func startVictim(t *testing.T, how string) (victim *osexec.Cmd, dir string, pids []int) {
	t.Helper()
	victim = osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVictim$")
	victim.Env = append(os.Environ(), victimVariable+"="+how)
	out, err := victim.StdoutPipe()
	must(t, err)
	must(t, victim.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 5 || fields[0] != "victim" {
			t.Log(lines.Text())
			continue
		}
		for _, field := range fields[2:] {
			pid, err := strconv.Atoi(field)
			must(t, err)
			pids = append(pids, pid)
		}
		return victim, fields[1], pids
	}
	_ = victim.Wait()
	t.Fatal("the victim did not start its servers")
	return nil, "", nil
}

// running tells whether a process lives; a zombie does not.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestNothingStaysBehindWhenTheProcessDies(t *testing.T) {
	t.Parallel()
	for _, death := range []string{"kill", "paused", "panic"} {
		victim, dir, pids := startVictim(t, death)
		if death != "panic" {
			must(t, victim.Process.Signal(syscall.SIGKILL))
		}
		if err := victim.Wait(); err == nil {
			t.Errorf("%s: the victim ended in peace", death)
		}
		envtest.Eventually(t, 2*soon, func() error {
			for _, pid := range pids {
				if running(pid) {
					return fmt.Errorf("%s: process %d still runs", death, pid)
				}
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s: %s is still there", death, dir)
			}
			return nil
		})
	}
}

func TestCloseStopsEverythingAndRemovesTheFolder(t *testing.T) {
	t.Parallel()
	env, err := testenv.New()
	must(t, err)
	p, err := env.StartPostgres(t.Context(), testenv.PGConfig{})
	must(t, err)
	n, err := env.StartNATS(t.Context(), testenv.NATSConfig{})
	must(t, err)
	_, err = env.Proxy(n.Addr())
	must(t, err)
	child := osexec.CommandContext(t.Context(), "sleep", "1000")
	must(t, env.Child(child))
	pids := []int{p.Pid(), n.Pid(), child.Process.Pid}
	must(t, env.Close())
	for _, pid := range pids {
		if running(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	if _, err := os.Stat(env.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", env.Dir())
	}
	must(t, env.Close()) // once more does nothing
	if err := child.Wait(); err == nil {
		t.Error("the child was not killed")
	}
	if _, err := env.StartNATS(t.Context(), testenv.NATSConfig{}); err == nil {
		t.Error("StartNATS in a closed environment = nil, want an error")
	}
}
