package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
)

// profile writes what a candidate does with its CPU, what it allocates, and what
// it waits for, into a folder.
func profile(folder, candidate string) (end func(), err error) {
	create := func(kind string) (*os.File, error) {
		f, err := os.Create(filepath.Join(folder, candidate+"."+kind+".pprof"))
		if err != nil {
			return nil, fmt.Errorf("make the profile: %w", err)
		}
		return f, nil
	}
	cpu, err := create("cpu")
	if err != nil {
		return nil, err
	}
	runtime.SetBlockProfileRate(10_000)
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, fmt.Errorf("start the profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		if err := cpu.Close(); err != nil {
			say("write the profile: %v", err)
		}
		for _, kind := range []string{"allocs", "block"} {
			f, err := create(kind)
			if err == nil {
				err = pprof.Lookup(kind).WriteTo(f, 0)
			}
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				say("write the profile: %v", err)
			}
		}
	}, nil
}
