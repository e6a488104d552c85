package envtest

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// watchHang tells, shortly before -timeout ends the process, what the tests that
// still run wait for, and ends it. What the testing package prints then are all
// goroutines, servers' included, with the name of the test far above the end.
func watchHang() (stop func()) {
	flag.Parse()
	getter, ok := flag.Lookup("test.timeout").Value.(flag.Getter)
	if !ok {
		return func() {}
	}
	limit, _ := getter.Get().(time.Duration)
	if limit <= 0 {
		return func() {}
	}
	timer := time.AfterFunc(limit-min(10*time.Second, limit/10), func() {
		tellHang(os.Stderr, limit)
		os.Exit(2) //nolint:forbidigo // as the testing package does
	})
	return func() { timer.Stop() }
}

func tellHang(to io.Writer, limit time.Duration) {
	dump := make([]byte, 64<<20)
	dump = dump[:runtime.Stack(dump, true)]
	_, _ = fmt.Fprintf(to, "\nenvtest: the tests run for nearly the %v that -timeout gives them. What hangs:\n\n%s", limit, hanging(dump))
}

// hanging picks from a dump of all goroutines those with frames of this module.
// Tests that wait for their turn are left out.
func hanging(dump []byte) string {
	var out strings.Builder
	for stack := range bytes.SplitSeq(dump, []byte("\n\n")) {
		head, rest, _ := strings.Cut(string(stack), "\n")
		switch {
		case !strings.Contains(rest, "walrelay/walrelay"),
			strings.Contains(rest, "testing.(*T).Parallel("), strings.Contains(rest, "envtest.watchHang"):
			continue
		}
		_, _ = fmt.Fprintf(&out, "%s\n%s\n\n", head, strings.TrimRight(rest, "\n"))
	}
	return out.String()
}
