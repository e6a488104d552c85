// Command install puts PostgreSQL versions where the tests find them. Its
// arguments are major versions:
//
//	go run ./internal/testenv/install 15 18
//
// What is there already is left as it is. See package pgbin.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/walrelay/walrelay/internal/testenv/pgbin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(install(ctx, os.Args[1:]))
}

// install returns the exit code: 0 when every version is there, 1 when one is
// not, 2 when the command line is wrong.
func install(ctx context.Context, arguments []string) int {
	if len(arguments) == 0 {
		_, _ = fmt.Fprintln(os.Stderr, "usage: install MAJOR_VERSION...   (15, 16, 17 or 18)")
		return 2
	}
	code := 0
	for _, argument := range arguments {
		version, err := strconv.Atoi(argument)
		if err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "install: %q is not a major version of PostgreSQL; use 15, 16, 17 or 18\n", argument)
			return 2
		}
		if err := pgbin.Install(ctx, version, os.Stdout); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "install:", err)
			code = 1
		}
	}
	return code
}
