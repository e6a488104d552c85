package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const supported = true

// A processID names one process for good: the kernel gives a pid again, but
// not with the same start time.
type processID struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// identify names the process that has this pid now.
func identify(pid int) (processID, bool) {
	stat, ok := readStat(pid)
	return processID{Pid: pid, Start: stat.start}, ok
}

// alive tells whether the process runs or is stopped. A zombie is dead: where
// process 1 reaps late, kill(pid, 0) finds it for seconds.
func (p processID) alive() bool {
	if p.Pid <= 0 {
		return false
	}
	stat, ok := readStat(p.Pid)
	return ok && stat.start == p.Start && stat.state != 'Z' && stat.state != 'X'
}

// signal does nothing to a process that is gone.
func (p processID) signal(sig syscall.Signal) {
	if p.alive() {
		_ = syscall.Kill(p.Pid, sig)
	}
}

// children lists the processes whose parent is p.
func (p processID) children() []processID {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var list []processID
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if stat, ok := readStat(pid); ok && stat.parent == p.Pid {
			list = append(list, processID{Pid: pid, Start: stat.start})
		}
	}
	return list
}

// freeze stops the process and then its children; in this order no child can
// be started unseen.
func (p processID) freeze() {
	p.signal(syscall.SIGSTOP)
	for _, child := range p.children() {
		child.signal(syscall.SIGSTOP)
	}
}

// thaw undoes freeze.
func (p processID) thaw() {
	for _, child := range p.children() {
		child.signal(syscall.SIGCONT)
	}
	p.signal(syscall.SIGCONT)
}

// A procStat is what is wanted of /proc/PID/stat.
type procStat struct {
	state  byte
	parent int
	start  uint64
}

func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	// The second field is the command in parentheses and may hold anything.
	end := strings.LastIndexByte(string(text), ')')
	if end < 0 {
		return procStat{}, false
	}
	fields := strings.Fields(string(text)[end+1:])
	if len(fields) < 20 {
		return procStat{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return procStat{}, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return procStat{}, false
	}
	return procStat{state: fields[0][0], parent: parent, start: start}, true
}

// clusterProcesses lists the postmaster of a data folder, first, and its
// children. It is empty when no server runs there.
func clusterProcesses(dataDir string) []processID {
	lines := lockFile(dataDir)
	if len(lines) == 0 {
		return nil
	}
	pid, err := strconv.Atoi(lines[0])
	if err != nil {
		return nil
	}
	// The file outlives a crash, and its pid may be somebody else's by now.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), dataDir) {
		return nil
	}
	postmaster, ok := identify(pid)
	if !ok {
		return nil
	}
	return append([]processID{postmaster}, postmaster.children()...)
}

// lockFile returns the lines of postmaster.pid.
func lockFile(dataDir string) []string {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}

// removeSharedMemory removes the segment of a server that was killed; one that
// stops by itself removes both the segment and the file that names it.
func removeSharedMemory(dataDir string) {
	const memoryLine = 6 // "key id", the seventh
	lines := lockFile(dataDir)
	if len(lines) <= memoryLine || len(clusterProcesses(dataDir)) > 0 {
		return
	}
	fields := strings.Fields(lines[memoryLine])
	if len(fields) != 2 {
		return
	}
	if id, err := strconv.Atoi(fields[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// quit asks the processes of a cluster for an immediate stop, stopped ones
// too: a pending signal is only seen by a process that runs.
func quit(cluster []processID) {
	for _, p := range cluster {
		p.signal(syscall.SIGQUIT)
	}
	for _, p := range cluster {
		p.signal(syscall.SIGCONT)
	}
}

// waitGone waits until none of the processes lives, and tells whether that
// came within the time.
func waitGone(processes []processID, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return poll(ctx, func() bool {
		for _, p := range processes {
			if p.alive() {
				return false
			}
		}
		return true
	})
}

// detach gives the command a session of its own, so that no terminal's signal
// reaches it.
func detach(cmd *exec.Cmd) {
	attributes(cmd).Setsid = true
}

// separate gives the command a process group of its own: Ctrl-C on a terminal
// is for us, who then stop the servers in order.
func separate(cmd *exec.Cmd) {
	if a := attributes(cmd); !a.Setsid {
		a.Setpgid = true
	}
}

func attributes(cmd *exec.Cmd) *syscall.SysProcAttr {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	return cmd.SysProcAttr
}

// An account is the user that PostgreSQL runs as, which refuses root.
type account struct {
	uid, gid int
	change   bool // it is not our own
}

// serverAccount is ourselves, or for root the user postgres, or nobody. A
// number alone would not do: initdb looks its user up.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil {
			return account{uid: uid, gid: gid, change: true}, nil
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root and there is neither a user postgres nor nobody; " +
		"add one, for example with `useradd --system postgres`, or run as another user")
}

// runAs makes the command run as the account.
func (a account) runAs(cmd *exec.Cmd) {
	if !a.change {
		return
	}
	attributes(cmd).Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// own gives a file or folder, not what is in it, to the account.
func (a account) own(path string) error {
	if !a.change {
		return nil
	}
	if err := os.Lchown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give the file to the server's user: %w", err)
	}
	return nil
}
