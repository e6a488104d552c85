// Command walrelay relays the inserts into an outbox table of PostgreSQL to
// NATS JetStream. It is a thin shell around package walrelay.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Exit codes; docs/configuration.md lists them for people.
const (
	exitDone    = 0
	exitFailed  = 1   // a check failed, or what was asked for could not be done
	exitUsage   = 2   // usage or configuration
	exitAborted = 130 // a second signal
)

// cli is the whole command line; each verb is in a file of its own.
type cli struct {
	File string `name:"config" help:"YAML file of settings. Environment and flags win over it." placeholder:"FILE"`

	Migrate     migrateCmd     `cmd:"" help:"Create or upgrade schema, publication and slot; --stream makes a stream."`
	Run         runCmd         `cmd:"" help:"Relay until stopped."`
	Status      statusCmd      `cmd:"" help:"What the relay does and what it waits for; exit code 1 if it does not deliver."`
	Doctor      doctorCmd      `cmd:"" help:"Every prerequisite with its value, verdict and fix; changes nothing; exit code 1 if one fails."`
	Replay      replayCmd      `cmd:"" help:"Publish retained rows again, or what is missing: a job that the running relay does."`
	Deadletters deadlettersCmd `cmd:"" help:"Events that could not be delivered."`
	Verify      verifyCmd      `cmd:"" help:"Compare the outbox tables with the streams; exit code 1 if anything is missing, unknown, stored twice, out of order or different."`
	Cleanup     cleanupCmd     `cmd:"" help:"Retention, once: delete old rows of the outbox that are proven to be stored, or the old receipts of a consumer."`
	Pause       pauseCmd       `cmd:"" help:"Stop delivering; the slot keeps the write-ahead log until walrelay resume."`
	Resume      resumeCmd      `cmd:"" help:"Go on delivering after walrelay pause."`
	Teardown    teardownCmd    `cmd:"" help:"Drop the slot and the publication of a source after showing what is undelivered; asks first."`
	Adopt       adoptCmd       `cmd:"" help:"Another stream or database continues this source: a new, empty one, or a copy."`
	Tail        tailCmd        `cmd:"" help:"Show the messages of a stream as they come, with their headers."`
	SignKey     signKeyCmd     `cmd:"" bare:"" help:"Make a key that signs messages, or show its public half."`
	Config      configCmd      `cmd:"" help:"The effective settings of run and where each comes from, secrets masked."`
	Demo        demoCmd        `cmd:"" bare:"" help:"Throw-away servers, orders, crashes, and the account of what survived."`
	Completion  completionCmd  `cmd:"" bare:"" help:"The script that completes verbs and flags in a shell."`
	Version     versionCmd     `cmd:"" bare:"" help:"Show the version."`

	DemoPart demoPartCmd `cmd:"" bare:"" hidden:""`
}

// env is what a verb gets from the process.
type env struct {
	ctx    context.Context
	stdout io.Writer
	stderr io.Writer

	settings *settings
}

func main() {
	testenv.Main() // the demo's servers are this binary in another role
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	var c cli
	code := -1
	parser, err := kong.New(&c,
		kong.Name("walrelay"),
		kong.Description("Relays a transactional outbox of PostgreSQL to NATS JetStream: nothing lost, nothing stored twice, in order."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.ValueFormatter(withVariable),
		kong.Writers(stdout, stderr),
		kong.Exit(func(c int) { code = c }),
	)
	if err != nil {
		fmt.Fprintln(stderr, "walrelay:", err)
		return exitUsage
	}
	s := gather(parser.Model, args, os.Environ())
	if err := kong.Resolvers(s).Apply(parser); err != nil {
		fmt.Fprintln(stderr, "walrelay:", err)
		return exitUsage
	}
	parsed, err := parser.Parse(s.args)
	if code >= 0 { // help was asked for
		return code
	}
	if lines := s.all(parsed, err); len(lines) > 0 {
		complain(stderr, lines)
		fmt.Fprintln(stderr, "walrelay --help lists the verbs, walrelay VERB --help the flags of one.")
		return exitUsage
	}
	ctx, stop := signals(context.Background(), stderr)
	defer stop()
	err = parsed.Run(&env{ctx: ctx, stdout: stdout, stderr: stderr, settings: s})
	return exitCode(err, s, stderr)
}

// withVariable adds the name in the environment to a flag's help.
func withVariable(v *kong.Value) string {
	if v.Flag == nil || v.Name == "help" {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " ($" + variable(v.Name) + ")."
}

// signals ends the context at the first SIGINT or SIGTERM. The second one ends
// the process: a person who presses Ctrl-C twice means it.
func signals(ctx context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan os.Signal, 2)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-got:
			cancel()
		case <-done:
			return
		}
		if !pause(done, togetherWithin) {
			return
		}
		for len(got) > 0 { // the same wish, sent to the process and to its group
			<-got
		}
		select {
		case <-got:
			fmt.Fprintln(stderr, "walrelay: second signal: leaving at once; what was not confirmed is sent again by the next start")
			os.Exit(exitAborted)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(done)
		cancel()
	}
}

// togetherWithin is how close signals must be to count as one: shells and
// supervisors signal a process and then its group.
const togetherWithin = 300 * time.Millisecond

// pause is false when done ended it.
func pause(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return false
	case <-t.C:
		return true
	}
}

// errCheckFailed makes a verb end with exit code 1 without another word.
var errCheckFailed = errors.New("a check failed")

// usageError is a configuration that cannot be used.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func exitCode(err error, s *settings, stderr io.Writer) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errCheckFailed) {
		return exitFailed
	}
	complain(stderr, s.explain(err))
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// complain writes one line a problem.
func complain(w io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(w, "walrelay:", line)
	}
}

// flatten gives joined errors one by one: one line a problem.
func flatten(err error) []error {
	if u, ok := errors.AsType[*usageError](err); ok {
		err = u.err
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the join itself is wanted, not what is in it
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// logger writes text to a terminal and JSON elsewhere.
func logger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
