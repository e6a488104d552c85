package walrelay

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// A Verdict is what a check found.
type Verdict string

const (
	// VerdictOK says that it is as a relay needs it.
	VerdictOK Verdict = "ok"
	// VerdictWarn says that a relay works, and what it costs.
	VerdictWarn Verdict = "warn"
	// VerdictFail says that no relay delivers before it is mended.
	VerdictFail Verdict = "fail"
	// VerdictUnknown says that it could not be found out.
	VerdictUnknown Verdict = "unknown"
)

// A Check is one thing that was looked at.
type Check struct {
	// Area is PostgreSQL, NATS or stream NAME.
	Area string `json:"area"`
	// Name is what was looked at, and Value what it is.
	Name  string `json:"name"`
	Value string `json:"value"`
	// Verdict is the judgement.
	Verdict Verdict `json:"verdict"`
	// Why says why it matters, or what is wrong.
	Why string `json:"why,omitempty"`
	// Fix is the statement, command or setting that mends it. A statement is
	// followed by who has to run it, as a comment of SQL.
	Fix string `json:"fix,omitempty"`
}

// A Report is what [Doctor] found.
type Report struct {
	Checks []Check `json:"checks"`
}

// Count says how many checks have a verdict.
func (r Report) Count(v Verdict) int {
	n := 0
	for _, c := range r.Checks {
		if c.Verdict == v {
			n++
		}
	}
	return n
}

// doctorPatience bounds what is asked of one server over one connection.
const doctorPatience = 10 * time.Second

// embeddedNATS begins a Config.NATS that stands for a JetStream within the
// relay's own process, as the command has it.
const embeddedNATS = "embedded:"

// Doctor looks at all that a relay with this configuration needs, on both sides
// at once, and gives each thing with its value, a verdict and the fix. What
// fails here makes [Relay.Run] wait or halt, with the same words. It changes
// nothing: its SQL session is read-only, it takes no slot and publishes
// nothing. A server that does not answer within ten seconds is a failed check,
// and the rest is still looked at. Where Config.NATS is embedded:DIR the streams
// are left out. The error is that of [New].
func Doctor(ctx context.Context, cfg Config) (Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Report{}, err
	}
	routes, err := newRouter(&cfg)
	if err != nil {
		return Report{}, err
	}
	database := &databaseDoctor{area: area{name: "PostgreSQL"}, cfg: &cfg, router: routes}
	broker := &brokerDoctor{area: area{name: "NATS"}, cfg: &cfg, router: routes}
	done := make(chan struct{})
	go func() {
		defer close(done)
		broker.look(ctx)
	}()
	database.look(ctx)
	<-done
	database.compare(ctx, broker)
	report := Report{Checks: append(database.checks, broker.checks...)}
	for _, s := range broker.streams {
		report.Checks = append(report.Checks, s.checks...)
	}
	return report, nil
}

// An area gathers the checks of one server or stream, in their order.
type area struct {
	name   string
	checks []Check
}

func (a *area) add(v Verdict, name, value, why, fix string) {
	a.checks = append(a.checks, Check{Area: a.name, Name: name, Value: value, Verdict: v, Why: why, Fix: fix})
}

func (a *area) ok(name, value, why string) { a.add(VerdictOK, name, value, why, "") }

func (a *area) warn(name, value, why, fix string) { a.add(VerdictWarn, name, value, why, fix) }

func (a *area) unknown(name, why string) { a.add(VerdictUnknown, name, "not known", why, "") }

// judge adds a check that fails with err, or is well without one. why is why it
// matters.
func (a *area) judge(name, value string, err error, why string) bool {
	if err == nil {
		a.ok(name, value, why)
		return true
	}
	a.refuse(VerdictFail, name, value, err)
	return false
}

// refuse adds what err says, in its words.
func (a *area) refuse(v Verdict, name, value string, err error) {
	why, fix := words(err)
	a.add(v, name, value, why, fix)
}

// words takes an error apart into what is wrong and what to do.
func words(err error) (why, fix string) {
	if e, ok := errors.AsType[*slot.MisfitError](err); ok {
		return e.Object + " " + e.Problem, e.Fix
	}
	if e, ok := errors.AsType[*HaltError](err); ok {
		return e.Object + " " + e.Problem, e.Fix
	}
	if e, ok := errors.AsType[*witness.RightsError](err); ok {
		return e.Problem(), e.Fix()
	}
	if e, ok := errors.AsType[*witness.MissingError](err); ok {
		return e.Error(), "walrelay migrate"
	}
	if e, ok := errors.AsType[*router.ColumnError](err); ok {
		return e.Error(), "correct columns." + e.Field + " of that table in the configuration"
	}
	return strings.TrimSpace(plain(err)), ""
}
