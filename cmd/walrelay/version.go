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

// version beats what the Go tool knows. The Dockerfile sets it by -ldflags,
// since a build context may come without a repository.
var version string

// build reads what the Go tool wrote into the program.
func build() admin.Build {
	b := admin.Build{Version: "devel", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.Version = firstOf(version, b.Version)
		return b
	}
	b.Version = firstOf(version, firstOf(info.Main.Version, b.Version))
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}
