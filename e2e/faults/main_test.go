package faults_test

import (
	"flag"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// Drills wait more than they work, so that more of them than there are cores
// may run at the same time.
const atATime = "5"

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set(f.Name, atATime) // it is a number
	}
	envtest.Main(m)
}
