package publish

import (
	"fmt"
	"strings"
	"time"
)

// StreamFacts is what matters of a stream's configuration.
type StreamFacts struct {
	Name     string
	Subjects []string
	// Retention is limits, interest or workqueue; Storage file or memory;
	// Discard old or new; PersistMode "" or async.
	Retention, Storage, Discard, PersistMode string
	Replicas                                 int
	// MaxMsgSize, MaxMsgs, MaxBytes and MaxMsgsPerSubject are limits, 0
	// where there is none. MaxAge is 0 where messages do not age.
	MaxMsgSize                           int
	MaxMsgs, MaxBytes, MaxMsgsPerSubject int64
	MaxAge                               time.Duration
	// DuplicateWindow is how long ids are remembered.
	DuplicateWindow    time.Duration
	DeleteMarkers      time.Duration
	Sources            int
	Mirror             bool
	Sealed, NoAck      bool
	AllowAtomic        bool
	AllowDirect        bool
	AllowRollup        bool
	Schedules          bool
	Counters           bool
	MessageTTL         bool
	DiscardPerSubject  bool
	SubjectTransformed bool
}

// wireConfig is a stream's configuration as STREAM.INFO writes it.
type wireConfig struct {
	Subjects          []string      `json:"subjects"`
	Retention         string        `json:"retention"`
	Storage           string        `json:"storage"`
	Discard           string        `json:"discard"`
	PersistMode       string        `json:"persist_mode"`
	Replicas          int           `json:"num_replicas"`
	MaxMsgSize        int           `json:"max_msg_size"`
	MaxMsgs           int64         `json:"max_msgs"`
	MaxBytes          int64         `json:"max_bytes"`
	MaxMsgsPerSubject int64         `json:"max_msgs_per_subject"`
	MaxAge            time.Duration `json:"max_age"`
	DuplicateWindow   time.Duration `json:"duplicate_window"`
	DeleteMarkers     time.Duration `json:"subject_delete_marker_ttl"`
	Sources           []struct{}    `json:"sources"`
	Mirror            *struct{}     `json:"mirror"`
	Transform         *struct{}     `json:"subject_transform"`
	Sealed            bool          `json:"sealed"`
	NoAck             bool          `json:"no_ack"`
	AllowAtomic       bool          `json:"allow_atomic"`
	AllowDirect       bool          `json:"allow_direct"`
	AllowRollup       bool          `json:"allow_rollup_hdrs"`
	Schedules         bool          `json:"allow_msg_schedules"`
	Counters          bool          `json:"allow_msg_counter"`
	MessageTTL        bool          `json:"allow_msg_ttl"`
	DiscardPerSubject bool          `json:"discard_new_per_subject"`
}

func (c *wireConfig) facts(name string) StreamFacts {
	return StreamFacts{
		Name: name, Subjects: c.Subjects, Retention: c.Retention, Storage: c.Storage, Discard: c.Discard,
		PersistMode: c.PersistMode, Replicas: c.Replicas,
		MaxMsgSize: max(c.MaxMsgSize, 0), MaxMsgs: max(c.MaxMsgs, 0), MaxBytes: max(c.MaxBytes, 0),
		MaxMsgsPerSubject: max(c.MaxMsgsPerSubject, 0), MaxAge: c.MaxAge,
		DuplicateWindow: c.DuplicateWindow, DeleteMarkers: c.DeleteMarkers,
		Sources: len(c.Sources), Mirror: c.Mirror != nil, Sealed: c.Sealed, NoAck: c.NoAck,
		AllowAtomic: c.AllowAtomic, AllowDirect: c.AllowDirect, AllowRollup: c.AllowRollup,
		Schedules: c.Schedules, Counters: c.Counters, MessageTTL: c.MessageTTL,
		DiscardPerSubject: c.DiscardPerSubject, SubjectTransformed: c.Transform != nil,
	}
}

// Covers says whether the stream takes messages on subject.
func (f StreamFacts) Covers(subject string) bool {
	for _, filter := range f.Subjects {
		if matches(filter, subject) {
			return true
		}
	}
	return false
}

func matches(filter, subject string) bool {
	for {
		want, filterRest, moreFilter := strings.Cut(filter, ".")
		if want == ">" {
			return subject != ""
		}
		have, subjectRest, moreSubject := strings.Cut(subject, ".")
		if want != "*" && want != have || moreFilter != moreSubject {
			return false
		}
		if !moreFilter {
			return true
		}
		filter, subject = filterRest, subjectRest
	}
}

// fileRecordMost is what a record of a stream's file may be: nats-server takes
// a longer one for a damaged one. Subject and what the server adds are in it.
const fileRecordMost = 32<<20 - 8<<10

// Largest is how large a message may be that the stream can keep, header block
// and body; 0: as large as the server takes.
func (f StreamFacts) Largest() int {
	switch {
	case f.Storage == "memory":
		return f.MaxMsgSize
	case f.MaxMsgSize == 0:
		return fileRecordMost
	default:
		return min(f.MaxMsgSize, fileRecordMost)
	}
}

// Removes says whether the stream removes messages by itself, and by which
// setting: then the last message can be gone and a mark with it.
func (f StreamFacts) Removes() (setting string, yes bool) {
	switch {
	case f.Retention != "" && f.Retention != "limits":
		return "retention: " + f.Retention, true
	case f.MaxAge > 0:
		return fmt.Sprintf("max_age: %v", f.MaxAge), true
	case f.Discard != "new" && f.MaxMsgs > 0:
		return fmt.Sprintf("max_msgs: %d with discard: old", f.MaxMsgs), true
	case f.Discard != "new" && f.MaxBytes > 0:
		return fmt.Sprintf("max_bytes: %d with discard: old", f.MaxBytes), true
	case f.MaxMsgsPerSubject > 0 && !f.DiscardPerSubject:
		return fmt.Sprintf("max_msgs_per_subject: %d", f.MaxMsgsPerSubject), true
	default:
		return "", false
	}
}

// A Problem is one setting of a stream that is in the way.
type Problem struct {
	// Setting is its name and value, Why what it does, Fix what to change.
	Setting, Why, Fix string
}

// String gives the whole of it in one line.
func (p Problem) String() string { return p.Setting + ": " + p.Why + "; " + p.Fix }

// Problems lists why a stream cannot be written to as a chain. Each alone makes
// it impossible: something other than the relay adds to the stream, or nothing
// tells what was stored.
func Problems(f StreamFacts) []Problem {
	const taken = " take sequences of the chain"
	return append(blocked(f), present(
		check{f.Sources > 0, Problem{fmt.Sprintf("sources: %d", f.Sources), "sourced messages" + taken, "remove the sources, or mark the stream `shared: true`"}},
		check{f.DeleteMarkers > 0, Problem{fmt.Sprintf("subject_delete_marker_ttl: %v", f.DeleteMarkers), "delete markers" + taken, switchOff}},
		check{f.Schedules, Problem{"allow_msg_schedules", "scheduled messages" + taken, switchOff}},
	)...)
}

// LaneProblems lists why a stream cannot be written to in lanes. What adds to
// the stream beside the relay is no problem there; but an attempt without an
// answer is repeated while the stream remembers its id, which has to be some
// times ackTimeout.
func LaneProblems(f StreamFacts, ackTimeout time.Duration) []Problem {
	least := 4 * ackTimeout
	return append(blocked(f), present(
		check{f.DuplicateWindow < least, Problem{
			fmt.Sprintf("duplicate_window: %v", f.DuplicateWindow),
			fmt.Sprintf("an attempt without an answer for %v could be stored twice", ackTimeout),
			fmt.Sprintf("set it to at least %v with `nats stream edit --dupe-window %v`", least, least),
		}},
	)...)
}

const switchOff = "switch it off with `nats stream edit`, or name a stream without it"

type check struct {
	yes     bool
	problem Problem
}

// blocked lists what is in the way of any writing.
func blocked(f StreamFacts) []Problem {
	return present(
		check{f.Mirror, Problem{"mirror", "a mirror takes no messages of its own", "name the stream that it mirrors"}},
		check{f.Counters, Problem{"allow_msg_counter", "a counter stream takes only increments", "name a stream without it"}},
		check{f.NoAck, Problem{"no_ack", "nothing would say what is stored", switchOff}},
		check{f.Sealed, Problem{"sealed", "a sealed stream takes no messages", "name another stream"}},
	)
}

func present(checks ...check) []Problem {
	var out []Problem
	for _, c := range checks {
		if c.yes {
			out = append(out, c.problem)
		}
	}
	return out
}

// Warnings lists what weakens the promise of a stream without making it
// impossible.
func Warnings(f StreamFacts) []Problem {
	var out []Problem
	if f.Storage == "memory" {
		out = append(out, Problem{"storage: memory", "a restart of the server loses what it acknowledged", "use file storage"})
	}
	if f.Replicas <= 1 {
		out = append(out, Problem{"num_replicas: 1", "the loss of one disk loses what was acknowledged", "use three replicas where there is a cluster"})
	}
	if f.PersistMode == "async" {
		out = append(out, Problem{"persist_mode: async", "messages are acknowledged before they are written", "use the default mode"})
	}
	if setting, yes := f.Removes(); yes && f.Retention == "limits" && f.MaxAge == 0 {
		out = append(out, Problem{setting, "messages can be removed before a consumer has read them", "use discard: new, or size the limit for the slowest consumer"})
	}
	return out
}
