// Command compose reads the compose file that it is given the way Docker
// Compose does, and prints what it means as JSON, for e2e/compose's test.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, files []string) error {
	options, err := cli.NewProjectOptions(files, cli.WithInterpolation(true), cli.WithResolvedPaths(true), cli.WithNormalization(true), cli.WithConsistency(true), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return fmt.Errorf("take the options: %w", err)
	}
	project, err := options.LoadProject(ctx)
	if err != nil {
		return fmt.Errorf("load %v: %w", files, err)
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return fmt.Errorf("write %v as JSON: %w", files, err)
	}
	_, err = os.Stdout.Write(text)
	return err
}
