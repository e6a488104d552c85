package e2e_test

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) {
	if consumerRole() {
		return
	}
	envtest.Main(m)
}
