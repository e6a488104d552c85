package envtest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// MakeStream makes a stream, also where one of that name has just been deleted:
// the server removes the files of that one a little later, and refuses meanwhile.
func MakeStream(tb testing.TB, js jetstream.JetStream, cfg jetstream.StreamConfig) jetstream.Stream {
	tb.Helper()
	var stream jetstream.Stream
	Eventually(tb, 30*time.Second, func() (err error) {
		stream, err = js.CreateOrUpdateStream(tb.Context(), cfg)
		return err
	})
	return stream
}
