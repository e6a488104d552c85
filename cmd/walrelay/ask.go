package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ask wants a yes of a person. Where nobody can answer it is an error: --yes
// says it beforehand.
func ask(e *env, question string) (bool, error) {
	nobody := &usageError{errors.New("nobody is there to be asked; add --yes, or --dry-run to see what would be done")}
	if !isTerminal(os.Stdin) {
		return false, nobody
	}
	fmt.Fprint(e.stdout, question+" [y/N] ")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if errors.Is(err, io.EOF) && line == "" { // such as the null device
		return false, nobody
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}
