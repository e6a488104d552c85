package main

import (
	"fmt"
	"runtime/debug"
)

type versionCmd struct{}

// Run prints what was built from what.
func (c *versionCmd) Run(e *env) error {
	version, revision := "devel", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = " " + s.Value
			}
		}
		version += revision + " " + info.GoVersion
	}
	_, err := fmt.Fprintln(e.stdout, "walrelay", version)
	return err
}
