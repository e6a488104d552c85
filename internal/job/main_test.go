package job_test

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }
