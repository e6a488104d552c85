//go:build !linux

package testenv

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

const supported = false

var errUnsupported = errors.New("servers for tests and the demo need Linux")

type processID struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

type account struct{}

func identify(int) (processID, bool)           { return processID{}, false }
func (processID) alive() bool                  { return false }
func (processID) signal(syscall.Signal)        {}
func (processID) children() []processID        { return nil }
func (processID) freeze()                      {}
func (processID) thaw()                        {}
func clusterProcesses(string) []processID      { return nil }
func removeSharedMemory(string)                {}
func quit([]processID)                         {}
func waitGone([]processID, time.Duration) bool { return true }
func detach(*exec.Cmd)                         {}
func separate(*exec.Cmd)                       {}
func serverAccount() (account, error)          { return account{}, errUnsupported }
func (account) runAs(*exec.Cmd)                {}
func (account) own(string) error               { return nil }
