package e2e_test

import (
	"flag"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// atATime is how many drills run side by side where -parallel does not say:
// they wait for servers and for time to pass more than they compute.
const atATime = "4"

func TestMain(m *testing.M) {
	if consumerRole() {
		return
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set(f.Name, atATime) // it is a number
	}
	envtest.Main(m)
}
