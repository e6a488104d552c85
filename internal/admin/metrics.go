package admin

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/walrelay/walrelay"
)

// A Build says what the running program was built from.
type Build struct {
	Version, Revision, GoVersion string
}

// registry has our metrics and those of process and runtime; nothing else of
// the program gets in.
func registry(status func() walrelay.Status, build Build) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(status, build), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// states are the values of the label state, in the order of a relay's life.
func states() []walrelay.State {
	return []walrelay.State{
		walrelay.StateStarting, walrelay.StateWaiting, walrelay.StateStandby, walrelay.StateRelaying,
		walrelay.StateHalted, walrelay.StateStopping, walrelay.StateStopped,
	}
}

// A collector makes metrics of one Status a scrape. Counters and states are
// there from the start; a gauge whose value is not known is left out, since 0
// would be a claim.
type collector struct {
	status func() walrelay.Status
	build  Build

	buildInfo, state, stateSince, ready                            *prometheus.Desc
	lagSeconds, lagBytes, behind, stalled, latency                 *prometheus.Desc
	events, storedBytes, transactions, rows, ignored               *prometheus.Desc
	publishes, retries, resyncs                                    *prometheus.Desc
	deadLetters, lettersBy, sessions                               *prometheus.Desc
	natsConnected, natsReconnects                                  *prometheus.Desc
	gapsOpen, gapsBy, gaps, healed, late, jobsOpen                 *prometheus.Desc
	slotActive, slotRetained, slotSafe, slotXminAge, slotLookedAt  *prometheus.Desc
	slotWAL                                                        *prometheus.Desc
	inFlight, queued, bytes, lastSequence, flowing, storedAt, mark *prometheus.Desc
	stream, messages, streamBytes, fill, refuses                   *prometheus.Desc
	retentionDeleted, retentionBacklog, retentionDuration          *prometheus.Desc
	partitionsDropped, partitionsUntil                             *prometheus.Desc
}

func newCollector(status func() walrelay.Status, build Build) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("walrelay_"+name, help, labels, nil)
	}
	return &collector{
		status: status, build: build,
		buildInfo:  desc("build_info", "What the program was built from; always 1.", "version", "revision", "goversion"),
		state:      desc("state", "1 for the state that the relay is in, 0 for the others.", "state"),
		stateSince: desc("state_since_timestamp_seconds", "When the state began, in seconds since 1970."),
		ready:      desc("ready", "1 while events are delivered, or would be if there were any; as /readyz."),

		lagSeconds: desc("lag_seconds", "Age of the oldest committed event that was received and is not stored; 0 when there is none. Absent when not known."),
		lagBytes:   desc("lag_bytes", "WAL between the confirmed LSN and the server's end. Absent when not known."),
		behind:     desc("behind_seconds", "How long ago the server's WAL ended at what the relay is not done with, to ten seconds; 0 when it is done with all. Absent when not known."),
		stalled:    desc("stalled", "1 while nothing moves though there is something to do, and the relay does not know why."),
		latency:    desc("commit_to_stored_seconds", "Live events by the time from their commit to their acknowledgement: the database's clock against the relay's."),

		storedBytes:  desc("stored_bytes_total", "Bytes of the bodies of stored events."),
		publishes:    desc("publishes_total", "Messages sent by what became of them: acknowledged, found (stored, as a resync saw), duplicate (the stream had seen the id), refused (they became dead letters). Failed attempts are walrelay_retries_total.", "outcome"),
		events:       desc("events_total", "Events by what became of them: stored, passed (they were in the stream already), dead_letter, skipped (their route says so).", "outcome"),
		transactions: desc("transactions_total", "Transactions that the slot has sent completely."),
		rows:         desc("rows_total", "Inserts that the slot has sent, of whatever table."),
		ignored:      desc("ignored_changes_total", "Changes that are no events: updates, deletes and truncates of an outbox, inserts of other tables.", "kind"),
		retries:      desc("retries_total", "Failed attempts to store a message, by what was in the way; the message is sent again.", "class"),
		resyncs:      desc("resyncs_total", "Times that sending began anew behind a stream's end."),
		deadLetters:  desc("dead_letters_open", "Dead letters that nobody has dealt with. Absent when not known."),
		lettersBy:    desc("dead_letters_open_by_reason", "Dead letters that nobody has dealt with, by reason; beyond twenty reasons the rest is other.", "reason"),
		gapsOpen:     desc("gaps_open", "Gaps that nobody has dealt with: committed events that are missing. Absent when not known."),
		gapsBy:       desc("gaps_open_by_kind", "Gaps that nobody has dealt with, by kind.", "kind"),
		gaps:         desc("gaps_total", "Gaps that were found, by kind.", "kind"),
		healed:       desc("healed_events_total", "Events that were published to heal gaps."),
		late:         desc("late_events_total", "Events that were published marked late: newer ones of their aggregate were stored before, or may have been."),
		jobsOpen:     desc("jobs_open", "Jobs that are asked for or running, such as a replay. Absent when not known."),
		sessions:     desc("sessions_total", "Replication sessions that were begun."),

		retentionDeleted:  desc("retention_deleted_rows_total", "Rows of the outbox tables deleted since they are old and proven to be stored."),
		partitionsDropped: desc("retention_dropped_partitions_total", "Partitions of the outbox dropped; their rows are counted as deleted."),
		partitionsUntil:   desc("partitions_until_timestamp_seconds", "Up to when partitions of the outbox are there, in seconds since 1970. Absent where it has none that the relay makes."),
		retentionBacklog:  desc("retention_backlog_seconds", "By how much the oldest row that is still there has passed the retention. Absent before the first look."),
		retentionDuration: desc("retention_duration_seconds", "How long the last deletion of old rows took. Absent before the first."),

		natsConnected:  desc("nats_connected", "1 while there is a connection to NATS."),
		natsReconnects: desc("nats_reconnects_total", "Connections to NATS after the first."),

		slotActive:   desc("slot_active", "1 if a process held the slot when it was last looked at."),
		slotRetained: desc("slot_retained_wal_bytes", "WAL that the slot keeps the server from removing."),
		slotSafe:     desc("slot_safe_wal_bytes", "WAL that may still be written before the slot is lost. Absent where max_slot_wal_keep_size sets no limit."),
		slotXminAge:  desc("slot_catalog_xmin_age_transactions", "Transactions since the slot's catalog_xmin; for so long vacuum has removed nothing from the system catalogues."),
		slotWAL:      desc("slot_wal_status", "1 for what the server says of the WAL that the slot needs: reserved, extended, unreserved (it may go at the next checkpoint) or lost.", "status"),
		slotLookedAt: desc("slot_looked_at_timestamp_seconds", "When PostgreSQL was last asked about the slot, in seconds since 1970."),

		inFlight:     desc("in_flight_messages", "Messages that are sent and not stored.", "stream"),
		queued:       desc("queued_messages", "Messages that are read from the slot and not sent.", "stream"),
		bytes:        desc("in_flight_bytes", "Memory of the messages that are not stored.", "stream"),
		lastSequence: desc("stream_last_sequence", "Sequence of the last message known to be stored. Absent when not known.", "stream"),
		flowing:      desc("stream_flowing", "1 while the stream stores events as they come.", "stream"),
		storedAt:     desc("stream_stored_timestamp_seconds", "When this session stored its last event, in seconds since 1970. Absent before the first.", "stream"),
		stream:       desc("stream_info", "How the relay writes to a stream; always 1.", "stream", "mechanism"),
		messages:     desc("stream_messages", "Messages that the stream held when it was last asked. Absent when not known.", "stream"),
		streamBytes:  desc("stream_bytes", "Bytes that the stream held when it was last asked. Absent when not known.", "stream"),
		fill:         desc("stream_fill_ratio", "How much of its limit of messages or bytes the stream holds, the larger of the two. Absent where it has none, and when not known.", "stream"),
		refuses:      desc("stream_refuses_when_full", "1 if the stream takes nothing more when it has reached its limit, 0 if it removes its oldest messages. Absent when not known.", "stream"),
		mark:         desc("stream_mark_met", "1 once all that the stream held at the session's start has been recognised.", "stream"),
	}
}

// Describe sends every description.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.buildInfo, c.state, c.stateSince, c.ready, c.lagSeconds, c.lagBytes, c.events, c.transactions, c.rows, c.ignored,
		c.retries, c.resyncs, c.deadLetters, c.gapsOpen, c.gaps, c.healed, c.late, c.jobsOpen, c.sessions, c.natsConnected, c.natsReconnects, c.slotActive, c.slotRetained,
		c.slotSafe, c.slotXminAge, c.slotLookedAt, c.inFlight, c.queued, c.bytes, c.lastSequence, c.flowing, c.storedAt, c.mark,
		c.retentionDeleted, c.retentionBacklog, c.retentionDuration, c.partitionsDropped, c.partitionsUntil, c.behind, c.stalled, c.latency, c.storedBytes, c.publishes, c.lettersBy,
		c.gapsBy, c.slotWAL, c.stream, c.messages, c.streamBytes, c.fill, c.refuses,
	} {
		to <- d
	}
}

// Collect makes the metrics of one status.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	st := c.status()
	m := sender{to}
	m.gauge(c.buildInfo, 1, c.build.Version, c.build.Revision, c.build.GoVersion)
	for _, s := range states() {
		m.gauge(c.state, truth(s == st.State), string(s))
	}
	m.gauge(c.stateSince, seconds(st.Since))
	m.gauge(c.ready, truth(st.NotReady() == ""))
	if st.LagSeconds != nil {
		m.gauge(c.lagSeconds, *st.LagSeconds)
	}
	if st.BehindSeconds != nil {
		m.gauge(c.behind, *st.BehindSeconds)
	}
	m.gauge(c.stalled, truth(!st.StalledSince.IsZero()))
	m.histogram(c.latency, &st.Latency)
	c.counters(m, &st.Counters)
	c.asked(m, &st)
	m.gauge(c.natsConnected, truth(st.NATS.Connected))
	m.count(c.natsReconnects, st.NATS.Reconnects)
	c.slot(m, &st)
	c.streams(m, &st)
}

// staleAfter is how old what a server said may be, and still be shown: servers
// are asked every ten seconds while they can be.
const staleAfter = time.Minute

func fresh(st *walrelay.Status, at time.Time) bool { return st.At.Sub(at) <= staleAfter }

// asked sends what PostgreSQL was asked for.
func (c *collector) asked(m sender, st *walrelay.Status) {
	if d := st.DeadLetters; d != nil && fresh(st, d.LookedAt) {
		m.gauge(c.deadLetters, float64(d.Open))
		for reason, n := range few(d.ByReason) {
			m.gauge(c.lettersBy, float64(n), reason)
		}
	}
	if g := st.Gaps; g != nil && fresh(st, g.LookedAt) {
		m.gauge(c.gapsOpen, float64(len(g.Open)))
		m.gauge(c.jobsOpen, float64(len(st.Jobs)))
		open := map[string]int{}
		for i := range g.Open {
			open[g.Open[i].Kind]++
		}
		for kind, n := range few(open) {
			m.gauge(c.gapsBy, float64(n), kind)
		}
	}
	var deleted, dropped uint64
	if r := st.Retention; r != nil {
		deleted, dropped = r.Deleted, r.Dropped
		// It runs once a minute and may take long.
		if st.At.Sub(r.LookedAt) <= 15*staleAfter {
			m.gauge(c.retentionBacklog, r.BacklogSeconds)
			m.gauge(c.retentionDuration, r.Seconds)
			if !r.PartitionsUntil.IsZero() {
				m.gauge(c.partitionsUntil, seconds(r.PartitionsUntil))
			}
		}
	}
	m.count(c.retentionDeleted, deleted)
	m.count(c.partitionsDropped, dropped)
}

// mostLabels bounds the values of a label that comes from a table.
const mostLabels = 20

// few keeps the largest and adds the rest up.
func few(counts map[string]int) map[string]int {
	if len(counts) <= mostLabels {
		return counts
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	kept := map[string]int{}
	for i, name := range names {
		if i >= mostLabels {
			name = "other"
		}
		kept[name] += counts[names[i]]
	}
	return kept
}

// walStatuses are the values of the label status.
func walStatuses() []string { return []string{"reserved", "extended", "unreserved", "lost"} }

func (c *collector) slot(m sender, st *walrelay.Status) {
	s := st.SlotState
	if s == nil {
		return
	}
	m.gauge(c.slotLookedAt, seconds(s.LookedAt))
	if !fresh(st, s.LookedAt) {
		return
	}
	m.known(c.lagBytes, st.LagBytes)
	m.gauge(c.slotActive, truth(s.Active))
	m.gauge(c.slotRetained, float64(s.RetainedBytes))
	m.known(c.slotSafe, s.SafeBytes)
	m.known(c.slotXminAge, s.CatalogXminAge)
	for _, status := range walStatuses() {
		m.gauge(c.slotWAL, truth(s.WALStatus == status), status)
	}
}

func (c *collector) streams(m sender, st *walrelay.Status) {
	for i := range st.Streams {
		s := &st.Streams[i]
		m.gauge(c.stream, 1, s.Name, s.Mechanism)
		if f := s.Fill; f != nil && fresh(st, f.LookedAt) {
			m.gauge(c.messages, float64(f.Messages), s.Name)
			m.gauge(c.streamBytes, float64(f.Bytes), s.Name)
			m.gauge(c.refuses, truth(f.Refuses), s.Name)
			if ratio, limited := f.Ratio(); limited {
				m.gauge(c.fill, ratio, s.Name)
			}
		}
		m.gauge(c.inFlight, float64(s.InFlight), s.Name)
		m.gauge(c.queued, float64(s.Queued), s.Name)
		m.gauge(c.bytes, float64(s.Bytes), s.Name)
		m.gauge(c.flowing, truth(s.Flowing), s.Name)
		m.gauge(c.mark, truth(s.MarkMet), s.Name)
		if s.LastSequence > 0 {
			m.gauge(c.lastSequence, float64(s.LastSequence), s.Name)
		}
		if !s.StoredAt.IsZero() {
			m.gauge(c.storedAt, seconds(s.StoredAt), s.Name)
		}
	}
}

func (c *collector) counters(m sender, n *walrelay.Counters) {
	m.count(c.transactions, n.Transactions)
	m.count(c.rows, n.Rows)
	m.count(c.sessions, n.Sessions)
	for _, kind := range walrelay.GapKinds() {
		m.count(c.gaps, n.GapsByKind[kind], kind)
	}
	m.count(c.storedBytes, n.StoredBytes)
	m.count(c.publishes, n.Answers.Acknowledged, "acknowledged")
	m.count(c.publishes, n.Answers.Found, "found")
	m.count(c.publishes, n.Answers.Duplicates, "duplicate")
	m.count(c.publishes, n.Answers.Refused, "refused")
	m.count(c.healed, n.Healed)
	m.count(c.late, n.Late)
	m.count(c.events, n.Stored, "stored")
	m.count(c.events, n.Passed, "passed")
	m.count(c.events, n.Refused, "dead_letter")
	m.count(c.events, n.Skipped, "skipped")
	m.count(c.ignored, n.Updates, "update")
	m.count(c.ignored, n.Deletes, "delete")
	m.count(c.ignored, n.Truncates, "truncate")
	m.count(c.ignored, n.NotOutbox, "not_outbox")
	m.count(c.retries, n.Retries.Timeouts, "timeout")
	m.count(c.retries, n.Retries.Disconnects, "disconnect")
	m.count(c.retries, n.Retries.WrongSequence, "wrong_sequence")
	m.count(c.retries, n.Retries.NoResponders, "no_responders")
	m.count(c.retries, n.Retries.Denied, "denied")
	m.count(c.retries, n.Retries.Environment, "environment")
	m.count(c.resyncs, n.Retries.Resyncs)
}

// sender sends metrics whose labels fit their descriptions.
type sender struct{ to chan<- prometheus.Metric }

func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.send(d, prometheus.GaugeValue, v, labels)
}

func (s sender) count(d *prometheus.Desc, v uint64, labels ...string) {
	s.send(d, prometheus.CounterValue, float64(v), labels)
}

// histogram makes Prometheus' cumulative buckets of ours.
func (s sender) histogram(d *prometheus.Desc, l *walrelay.LatencyStatus) {
	buckets, below := make(map[float64]uint64, len(l.Bounds)), uint64(0)
	for i, bound := range l.Bounds {
		below += l.Counts[i]
		buckets[bound] = below
	}
	m, err := prometheus.NewConstHistogram(d, l.Count(), l.Sum, buckets)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	s.to <- m
}

func (s sender) known(d *prometheus.Desc, v *int64) {
	if v != nil {
		s.gauge(d, float64(*v))
	}
}

// send turns a fault into an invalid metric, which makes the scrape fail and
// the tests with it.
func (s sender) send(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	m, err := prometheus.NewConstMetric(d, t, v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	s.to <- m
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	return float64(t.UnixMilli()) / 1000
}
