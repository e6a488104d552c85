package admin

import (
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
	lagSeconds, lagBytes                                           *prometheus.Desc
	events, transactions, rows, ignored, retries, resyncs          *prometheus.Desc
	deadLetters, sessions, natsConnected, natsReconnects           *prometheus.Desc
	gapsOpen, gaps, healed, jobsOpen                               *prometheus.Desc
	slotActive, slotRetained, slotSafe, slotXminAge, slotLookedAt  *prometheus.Desc
	inFlight, queued, bytes, lastSequence, flowing, storedAt, mark *prometheus.Desc
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

		lagSeconds: desc("lag_seconds", "Age of the oldest event that was received and is not stored; 0 when there is none. Absent when not known."),
		lagBytes:   desc("lag_bytes", "WAL between the confirmed LSN and the server's end. Absent when not known."),

		events:       desc("events_total", "Events by what became of them: stored, passed (they were in the stream already), dead_letter, skipped (their route says so).", "outcome"),
		transactions: desc("transactions_total", "Transactions that the slot has sent completely."),
		rows:         desc("rows_total", "Inserts that the slot has sent, of whatever table."),
		ignored:      desc("ignored_changes_total", "Changes that are no events: updates, deletes and truncates of an outbox, inserts of other tables.", "kind"),
		retries:      desc("retries_total", "Failed attempts to store a message, by what was in the way; the message is sent again.", "class"),
		resyncs:      desc("resyncs_total", "Times that sending began anew behind a stream's end."),
		deadLetters:  desc("dead_letters_open", "Dead letters that nobody has dealt with. Absent when not known."),
		gapsOpen:     desc("gaps_open", "Gaps that nobody has dealt with: committed events that are missing. Absent when not known."),
		gaps:         desc("gaps_total", "Gaps that were found."),
		healed:       desc("healed_events_total", "Events that were published to heal gaps."),
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
		slotLookedAt: desc("slot_looked_at_timestamp_seconds", "When PostgreSQL was last asked about the slot, in seconds since 1970."),

		inFlight:     desc("in_flight_messages", "Messages that are sent and not stored.", "stream"),
		queued:       desc("queued_messages", "Messages that are read from the slot and not sent.", "stream"),
		bytes:        desc("in_flight_bytes", "Memory of the messages that are not stored.", "stream"),
		lastSequence: desc("stream_last_sequence", "Sequence of the last message known to be stored. Absent when not known.", "stream"),
		flowing:      desc("stream_flowing", "1 while the stream stores events as they come.", "stream"),
		storedAt:     desc("stream_stored_timestamp_seconds", "When this session stored its last event, in seconds since 1970. Absent before the first.", "stream"),
		mark:         desc("stream_mark_met", "1 once all that the stream held at the session's start has been recognised.", "stream"),
	}
}

// Describe sends every description.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.buildInfo, c.state, c.stateSince, c.ready, c.lagSeconds, c.lagBytes, c.events, c.transactions, c.rows, c.ignored,
		c.retries, c.resyncs, c.deadLetters, c.gapsOpen, c.gaps, c.healed, c.jobsOpen, c.sessions, c.natsConnected, c.natsReconnects, c.slotActive, c.slotRetained,
		c.slotSafe, c.slotXminAge, c.slotLookedAt, c.inFlight, c.queued, c.bytes, c.lastSequence, c.flowing, c.storedAt, c.mark,
		c.retentionDeleted, c.retentionBacklog, c.retentionDuration, c.partitionsDropped, c.partitionsUntil,
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
	m.known(c.lagBytes, st.LagBytes)
	c.counters(m, &st.Counters)
	if st.DeadLetters != nil {
		m.gauge(c.deadLetters, float64(st.DeadLetters.Open))
	}
	if st.Gaps != nil {
		m.gauge(c.gapsOpen, float64(len(st.Gaps.Open)))
		m.gauge(c.jobsOpen, float64(len(st.Jobs)))
	}
	var deleted, dropped uint64
	if r := st.Retention; r != nil {
		deleted, dropped = r.Deleted, r.Dropped
		if !r.PartitionsUntil.IsZero() {
			m.gauge(c.partitionsUntil, seconds(r.PartitionsUntil))
		}
		m.gauge(c.retentionBacklog, r.BacklogSeconds)
		m.gauge(c.retentionDuration, r.Seconds)
	}
	m.count(c.retentionDeleted, deleted)
	m.count(c.partitionsDropped, dropped)
	m.gauge(c.natsConnected, truth(st.NATS.Connected))
	m.count(c.natsReconnects, st.NATS.Reconnects)
	if s := st.SlotState; s != nil {
		m.gauge(c.slotActive, truth(s.Active))
		m.gauge(c.slotRetained, float64(s.RetainedBytes))
		m.known(c.slotSafe, s.SafeBytes)
		m.known(c.slotXminAge, s.CatalogXminAge)
		m.gauge(c.slotLookedAt, seconds(s.LookedAt))
	}
	for i := range st.Streams {
		s := &st.Streams[i]
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
	m.count(c.gaps, n.Gaps)
	m.count(c.healed, n.Healed)
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
