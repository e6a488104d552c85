package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/walrelay/walrelay/internal/admin"
)

type versionCmd struct{}

// Run prints what was built from what.
func (c *versionCmd) Run(e *env) error {
	b := build()
	revision := b.Revision
	if revision != "" {
		revision = " " + revision
	}
	_, err := fmt.Fprintf(e.stdout, "walrelay %s%s %s\n", b.Version, revision, b.GoVersion)
	return err
}

// build reads what the Go tool wrote into the program.
func build() admin.Build {
	b := admin.Build{Version: "devel", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = firstOf(info.Main.Version, b.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}
