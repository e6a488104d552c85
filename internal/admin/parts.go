package admin

import (
	"fmt"
	"time"

	"github.com/walrelay/walrelay"
)

// A Level says how well something is. It is also said in words wherever it is
// shown.
type Level string

// The levels, the best first.
const (
	LevelOK      Level = "ok"
	LevelRest    Level = "rest" // well, and nothing to do
	LevelUnknown Level = "unknown"
	LevelWarn    Level = "warn"
	LevelBad     Level = "bad"
)

// A Part is one station on the way of an event, for the picture.
type Part struct {
	Name  string   `json:"name"` // service, postgresql, relay or jetstream
	Title string   `json:"title"`
	Level Level    `json:"level"`
	Word  string   `json:"word"`            // the state in a word or two
	Lines []string `json:"lines,omitempty"` // a few short facts
}

// parts gives the stations in the order in which an event passes them.
func parts(st *walrelay.Status) []Part {
	return []Part{servicePart(st), slotPart(st), relayPart(st), streamPart(st)}
}

func servicePart(st *walrelay.Status) Part {
	p := Part{Name: "service", Title: "Your services", Level: LevelRest, Word: "write events", Lines: []string{"INSERT in their own", "transactions"}}
	if st.Phase() == walrelay.PhaseDelivering {
		p.Level = LevelOK
	}
	return p
}

func slotPart(st *walrelay.Status) Part {
	p := Part{Name: "postgresql", Title: "PostgreSQL", Level: LevelOK, Word: "slot is held", Lines: []string{"slot " + st.Slot}}
	s := st.SlotState
	if s == nil || !fresh(st, s.LookedAt) {
		p.Level, p.Word = LevelUnknown, "not known now"
		switch st.State {
		case walrelay.StateStandby:
			p.Level, p.Word = LevelRest, "held by another"
		case walrelay.StateWaiting:
			p.Level, p.Word = LevelBad, "not reached"
			if !st.NATS.Connected {
				p.Level, p.Word = LevelUnknown, "not known now" // NATS may be all that is in the way
			}
		case walrelay.StateHalted:
			p.Level, p.Word = LevelBad, "see below"
		case walrelay.StateStarting, walrelay.StateRelaying, walrelay.StateStopping, walrelay.StateStopped:
		}
		return p
	}
	p.Lines = append(p.Lines, Size(s.RetainedBytes)+" of WAL kept")
	switch {
	case !s.Active:
		p.Level, p.Word = LevelWarn, "slot is not held"
	case s.WALStatus == "lost" || s.WALStatus == "unreserved":
		p.Level, p.Word = LevelBad, "WAL "+s.WALStatus
	case nearLoss(s):
		p.Level, p.Word = LevelBad, "slot is near its loss"
	case s.RetainedBytes > muchWAL:
		p.Level, p.Word = LevelWarn, "slot keeps much WAL"
	case st.Withheld != "":
		p.Level, p.Word = LevelBad, "waits for a standby"
	case !st.StalledSince.IsZero():
		p.Level, p.Word = LevelBad, "sends nothing"
	}
	return p
}

func relayPart(st *walrelay.Status) Part {
	phase := st.Phase()
	p := Part{Name: "relay", Title: "walrelay", Level: levelOf(phase), Word: string(phase)}
	held := 0
	for i := range st.Streams {
		held += st.Streams[i].InFlight + st.Streams[i].Queued
	}
	p.Lines = append(p.Lines, fmt.Sprintf("%s in flight", Count(uint64(held))))
	if lag := st.LagSeconds; lag != nil && *lag > 0 {
		p.Lines = append(p.Lines, "oldest "+Span(*lag))
	}
	return p
}

func levelOf(phase walrelay.Phase) Level {
	switch phase {
	case walrelay.PhaseDelivering:
		return LevelOK
	case walrelay.PhaseWaiting:
		return LevelWarn
	case walrelay.PhaseStalled, walrelay.PhaseHalted:
		return LevelBad
	case walrelay.PhaseIdle, walrelay.PhaseStandby, walrelay.PhaseStarting, walrelay.PhaseStopping, walrelay.PhaseStopped:
	}
	return LevelRest
}

func streamPart(st *walrelay.Status) Part {
	p := Part{Name: "jetstream", Title: "JetStream", Level: LevelOK, Word: "stores events"}
	flowing := 0
	for i := range st.Streams {
		if st.Streams[i].Flowing {
			flowing++
		}
	}
	const shown = 2
	for i := range st.Streams {
		if i == shown && len(st.Streams) > shown+1 {
			p.Lines = append(p.Lines, fmt.Sprintf("and %d more", len(st.Streams)-shown))
			break
		}
		p.Lines = append(p.Lines, "stream "+st.Streams[i].Name)
	}
	switch {
	case !st.NATS.Connected:
		p.Level, p.Word = LevelBad, "no connection"
	case st.State != walrelay.StateRelaying:
		p.Level, p.Word = LevelRest, "connected"
	case flowing == 0 && len(st.Streams) > 0:
		p.Level, p.Word = LevelBad, "takes nothing"
	case flowing < len(st.Streams):
		p.Level, p.Word = LevelWarn, fmt.Sprintf("%d of %d streams", flowing, len(st.Streams))
	case st.Phase() != walrelay.PhaseDelivering:
		p.Level, p.Word = LevelRest, "ready"
	}
	return p
}

// Count gives a number with its thousands set apart.
func Count(n uint64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// Span gives seconds for people.
func Span(seconds float64) string {
	switch d := time.Duration(seconds * float64(time.Second)); {
	case d < time.Millisecond && d > 0:
		return "under 1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	default:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	}
}

// Size gives bytes for people.
func Size(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= step && unit < 4 {
		v /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit-1])
}
