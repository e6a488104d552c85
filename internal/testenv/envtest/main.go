package envtest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Main is the whole of TestMain: it plays a helper's role if this process is
// one, runs the tests, tells what hangs, stops what they shared, looks for goroutines that are
// left over, and exits. The options are goleak's.
func Main(m *testing.M, opts ...goleak.Option) {
	testenv.Main()
	stop := watchHang()
	code := m.Run()
	stop()
	if err := closeShared(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "envtest: close what the tests shared:", err)
		code = max(code, 1)
	}
	// A failed test often leaves goroutines; they would only hide its message.
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "envtest:", err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // this is the end of TestMain
}

// shared is what all tests of this process have in common. It is global since
// nothing but the process itself can carry it from test to test.
var shared struct {
	sync.Mutex
	env      *testenv.Env
	postgres *testenv.Postgres
	database int // number of the last one on postgres
}

// sharedEnv is made by the first test that needs it.
func sharedEnv() (*testenv.Env, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.env == nil {
		env, err := testenv.New()
		if err != nil {
			return nil, err
		}
		shared.env = env
	}
	return shared.env, nil
}

// SharedDir is a folder that all tests of this process share, for what one of
// them builds and all use. It is removed after the last test.
func SharedDir(tb testing.TB) string {
	tb.Helper()
	env, err := sharedEnv()
	if err != nil {
		tb.Fatalf("make an environment: %v", err)
	}
	return env.Dir()
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.env == nil {
		return nil
	}
	return shared.env.Close()
}
