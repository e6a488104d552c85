package libpq_test

import (
	"os"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) {
	// What the machine sets is not what a test sets.
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") && name != "PG_CACHE" {
			_ = os.Unsetenv(name)
		}
	}
	envtest.Main(m)
}
