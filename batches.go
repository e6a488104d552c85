package walrelay

import "github.com/walrelay/walrelay/internal/publish"

// When events that wait are sent as atomic batches.
const (
	// BatchesAuto sends them to a stream whose server was seen to be slow
	// message by message, as one is that syncs every write. The default.
	BatchesAuto = "auto"
	// BatchesAlways sends them to every stream that allows them.
	BatchesAlways = "always"
	// BatchesNever sends none.
	BatchesNever = "never"
)

func batching(word string) (b publish.Batching, known bool) {
	switch word {
	case BatchesAuto:
		return publish.BatchAuto, true
	case BatchesAlways:
		return publish.BatchAlways, true
	case BatchesNever:
		return publish.BatchNever, true
	}
	return 0, false
}
