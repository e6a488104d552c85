package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walrelay/walrelay"
)

type doctorCmd struct {
	relaying `embed:""`

	JSON    bool `name:"json" help:"One JSON object."`
	Verbose bool `help:"Say of every check why it matters, not only of those that are not well."`
}

// Run looks at everything and changes nothing. Exit code 1 says that a check
// failed; warnings and what could not be found out do not count.
func (c *doctorCmd) Run(e *env) error {
	report, err := walrelay.Doctor(e.ctx, c.config(nil))
	if err != nil {
		return &usageError{err}
	}
	report.Checks = append(report.Checks, c.listener.examine(e.ctx, c.Source, time.Now())...)
	for i := range report.Checks {
		one := &report.Checks[i]
		one.Value, one.Why, one.Fix = maskText(one.Value), maskText(one.Why), maskText(one.Fix)
	}
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(report)
	} else {
		err = printReport(e.stdout, report, c.Verbose)
	}
	if err == nil && report.Count(walrelay.VerdictFail) > 0 {
		return errCheckFailed
	}
	return err
}

// signs stand before each line, so that the eye finds what is not well.
var signs = map[walrelay.Verdict]string{
	walrelay.VerdictOK: "ok", walrelay.VerdictWarn: "WARN", walrelay.VerdictFail: "FAIL", walrelay.VerdictUnknown: "?",
}

// printReport writes a line a check, and below what is not well why and what to
// do.
func printReport(out io.Writer, report walrelay.Report, verbose bool) error {
	const most = 44 // characters of a name that others line up with
	width := 0
	for _, c := range report.Checks {
		if n := utf8.RuneCountInString(c.Name); n <= most {
			width = max(width, n)
		}
	}
	var b strings.Builder
	area := ""
	for _, c := range report.Checks {
		if c.Area != area {
			if area != "" {
				b.WriteByte('\n')
			}
			area = c.Area
			fmt.Fprintln(&b, area)
		}
		name := c.Name + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(c.Name)))
		fmt.Fprintf(&b, "  %-4s  %s  %s\n", signs[c.Verdict], name, c.Value)
		if c.Verdict == walrelay.VerdictOK && !verbose {
			continue
		}
		if c.Why != "" {
			fmt.Fprintf(&b, "        why: %s\n", c.Why)
		}
		if c.Fix != "" {
			fmt.Fprintf(&b, "        fix: %s\n", c.Fix)
		}
	}
	fmt.Fprintf(&b, "\n%d failed, %d warnings, %d not known, %d ok\n", report.Count(walrelay.VerdictFail), report.Count(walrelay.VerdictWarn),
		report.Count(walrelay.VerdictUnknown), report.Count(walrelay.VerdictOK))
	_, err := io.WriteString(out, b.String())
	return err
}
