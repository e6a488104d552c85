package walrelay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestAMissingStreamFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	if err := p.js.DeleteStream(t.Context(), p.stream); err != nil {
		t.Fatal(err)
	}
	d := p.examine()
	d.only("stream")
	p.sameWords(d.want("stream", fail, "does not exist", "walrelay migrate --stream "+p.stream))
	if names := p.streams(); names != "" {
		t.Errorf("streams = %q, want none made", names)
	}
}

// A key that cannot be read or does not sign.
func TestASigningKeyThatCannotBeUsedFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	text := "k1 hmac-sha256 c2VjcmV0LXNlY3JldC1zZWNyZXQ="
	p.cfg.SignKey = func() ([]byte, error) { return []byte(text), nil }
	d := p.examine()
	d.only()
	d.want("signing key", walrelay.VerdictOK, "k1 hmac-sha256", "")
	text = "k1 hmac-sha256 c2hvcnQ="
	d = p.examine()
	d.only("signing key")
	p.sameWords(d.want("signing key", fail, "the secret has 5 bytes", "walrelay sign-key"))
}

func (p *patient) streams() string {
	p.t.Helper()
	var names []string
	list := p.js.StreamNames(p.t.Context())
	for name := range list.Name() {
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// Each setting with which a chain is not possible.
func TestAStreamThatCannotBeWrittenToInOrderFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"no_ack": func(c *jetstream.StreamConfig) { c.NoAck = true },
		"subject_delete_marker_ttl": func(c *jetstream.StreamConfig) {
			c.SubjectDeleteMarkerTTL, c.AllowMsgTTL, c.MaxAge = time.Minute, true, time.Hour
		},
		"allow_msg_counter": func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true },
		"sources": func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "OTHER"}}
		},
	} {
		p.makeStream(change)
		d := p.examine()
		d.only("mechanism")
		p.sameWords(d.want("mechanism", fail, setting))
	}
}

func TestASharedStreamNeedsADuplicateWindow(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.cfg.Streams = []walrelay.Stream{{Name: p.stream, Shared: true}}
	p.makeStream(func(c *jetstream.StreamConfig) { c.Duplicates = 10 * time.Second })
	d := p.examine()
	d.only("mechanism")
	d.want("mechanism", fail, "lanes", "duplicate_window: 10s", "20s")
	p.makeStream(func(c *jetstream.StreamConfig) { c.Duplicates = 20 * time.Second })
	p.examine().only()
}

func TestA46AShortDuplicateWindowIsWarnedAbout(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.makeStream(func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Second })
	d := p.examine()
	d.only()
	d.want("duplicate window", warn, "2s", "stored twice", "--dupe-window 2m")
}

func TestA50LimitsOfAStreamAreWarnedAboutAndAFullOneFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.makeStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 })
	p.examine().want("discard", warn, "old, max_msgs 100", "removed before a consumer has read them", "discard: new")

	p.makeStream(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardNew })
	p.examine().want("discard", ok, "new")
	for i := range 10 {
		if i == 9 {
			// Nine of ten is not more than nine tenths; the tenth fills it.
			p.examine().want("room", ok, "90 %")
		}
		p.publish(fmt.Sprint(i), p.name)
	}
	d := p.examine()
	c := d.want("room", fail, "is full", "purge it")
	if got := len(d.Checks); got == 0 || c.Area != "stream "+p.stream {
		t.Errorf("check %+v, want it in the stream's area", c)
	}
}

// publish stores a message of a source.
func (p *patient) publish(id, source string) {
	p.t.Helper()
	m := nats.NewMsg("outbox." + p.name + ".order.placed")
	m.Header.Set(envelope.HeaderMsgID, id)
	if source != "" {
		m.Header.Set(envelope.HeaderSource, source)
		m.Header.Set(envelope.HeaderPosition, "1/0/10/0")
	}
	if _, err := p.js.PublishMsg(p.t.Context(), m); err != nil {
		p.t.Fatal(err)
	}
}

func TestA62OneReplicaAndMemoryAreWarnedAbout(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.makeStream(func(c *jetstream.StreamConfig) {
		c.Storage, c.Retention = jetstream.MemoryStorage, jetstream.InterestPolicy
	})
	d := p.examine()
	d.only()
	d.want("storage", warn, "memory", "file storage")
	d.want("replicas", warn, "1", "three replicas")
	d.want("retention", warn, "interest", "unread")
}

func TestSubjectsThatAStreamDoesNotTakeFail(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.makeStream(func(c *jetstream.StreamConfig) { c.Subjects = []string{"outbox." + p.name + ".order.*"} })
	d := p.examine()
	d.only()
	d.want("subjects outbox."+p.name+".>", unknown, "covered in part", "depends on its row")

	p.cfg.Routes = []walrelay.Route{
		{EventTypes: []string{"placed"}, Subject: "outbox." + p.name + ".order.{event_type}"},
		{EventTypes: []string{"mail.sent"}, Subject: "outbox." + p.name + ".mail.{event_type}"},
		{Subject: "outbox." + p.name + ".order.{token(aggregate_id)}"},
	}
	d = p.examine()
	d.only("subjects outbox." + p.name + ".mail.mail.sent")
	d.want("subjects outbox."+p.name+".order.placed", ok, "covered by")
	d.want("subjects outbox."+p.name+".order.*", ok, "covered by")
	d.want("subjects outbox."+p.name+".mail.mail.sent", fail, "does not cover subject", "nats stream edit")
}

func TestAnotherWriterIsNamed(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.publish("1", "")
	d := p.examine()
	d.only()
	d.want("other writers", warn, "message 1", "shared: true")
	p.publish("2", "mail")
	d = p.examine()
	d.only()
	d.want("other writers", warn, `source "mail"`)
	p.cfg.Streams = []walrelay.Stream{{Name: p.stream, Shared: true}}
	for _, c := range p.examine().Checks {
		if c.Name == "other writers" {
			t.Errorf("check %+v of a shared stream, want none", c)
		}
	}
}

// What only both sides together tell: the stream remembers what the slot does
// not.
func TestAMissingSlotThatAStreamRemembersFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.publish("1", p.name)
	d := p.examine()
	d.only("end of the stream")
	for _, c := range d.Checks {
		if c.Verdict == fail {
			p.sameWords(c)
		}
	}
}

func TestAStreamThatForgotFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.publish("1", p.name)
	p.witness(p.name, p.name)
	p.exec(`UPDATE walrelay.witness SET epoch = 1, streams = jsonb_build_object('` + p.stream + `', jsonb_build_object('created', now(), 'last_seq', 7, 'at', now()))`)
	d := p.examine()
	d.only("end of the stream")
	d.want("end of the stream", fail, "made anew", "sequence 7")
}

const permissions = `
authorization { users: [
  {user: admin, password: admin}
  {user: relay, password: relay, permissions: {
    publish: {allow: [%s, "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*"], deny: ["denied.>"%s]}
    subscribe: [%s]
  }}
]}`

// The least that a relay needs is enough for the check as well, and what is
// missing is named where the server says it.
func TestRightsForExactlyWhatIsNeeded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		publish, deny, subscribe string
		failed                   []string
		check                    string
		verdict                  walrelay.Verdict
		words                    []string
	}{
		"least":                {publish: `"outbox.>"`, subscribe: `"_INBOX.>"`, check: "right to publish", verdict: unknown, words: []string{"cannot be found out without publishing"}},
		"told, granted":        {publish: `"outbox.>", "$SYS.REQ.USER.INFO"`, subscribe: `"_INBOX.>"`, check: "right to publish", verdict: ok},
		"told, in part":        {publish: `"outbox.*.order.>", "$SYS.REQ.USER.INFO"`, subscribe: `"_INBOX.>"`, check: "right to publish", verdict: warn, words: []string{"some subjects"}},
		"told, denied in part": {publish: `"outbox.>", "$SYS.REQ.USER.INFO"`, deny: `, "outbox.*.mail.>"`, subscribe: `"_INBOX.>"`, check: "right to publish", verdict: warn, words: []string{"outbox.*.mail.>"}},
		"told, denied":         {publish: `"outbox.>", "$SYS.REQ.USER.INFO"`, deny: `, "outbox.>"`, subscribe: `"_INBOX.>"`, failed: []string{"right to publish outbox.@.>"}, check: "right to publish", verdict: fail, words: []string{"not permitted to publish"}},
		"told, not granted":    {publish: `"other.>", "$SYS.REQ.USER.INFO"`, subscribe: `"_INBOX.>"`, failed: []string{"right to publish outbox.@.>"}, check: "right to publish", verdict: fail, words: []string{"not permitted to publish"}},
		"no inbox":             {publish: `"outbox.>"`, subscribe: `"x"`, failed: []string{"stream"}, check: "stream", verdict: fail, words: []string{"not permitted to subscribe to", "_INBOX"}},
		"no right to ask":      {publish: `"outbox.>", "$JS.API.STREAM.NAMES"`, subscribe: `"_INBOX.>"`, check: "limits of the account", verdict: unknown, words: []string{"not permitted", "$JS.API.INFO"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, envtest.SharedPostgres(t), true)
			file := filepath.Join(t.TempDir(), "nats.conf")
			if err := os.WriteFile(file, fmt.Appendf(nil, permissions, c.publish, c.deny, c.subscribe), 0o600); err != nil {
				t.Fatal(err)
			}
			server := envtest.EmbeddedNATS(t, testenv.NATSConfig{ConfigFile: file})
			nc, err := nats.Connect(server.URL(), nats.UserInfo("admin", "admin"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			if p.js, err = jetstream.New(nc); err != nil {
				t.Fatal(err)
			}
			p.makeStream(nil)
			p.cfg.NATS = strings.Replace(server.URL(), "nats://", "nats://relay:relay@", 1)
			d := p.examine()
			for i := range c.failed {
				c.failed[i] = strings.ReplaceAll(c.failed[i], "@", p.name)
			}
			d.only(c.failed...)
			if c.check == "right to publish" {
				c.check += " outbox." + p.name + ".>"
			}
			d.want(c.check, c.verdict, c.words...)
		})
	}
}

func TestAJetStreamWithinTheRelayIsNotLookedAt(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.cfg.NATS = "embedded:" + t.TempDir()
	d := p.examine()
	d.only()
	d.want("connection", ok, "inside the relay")
}
