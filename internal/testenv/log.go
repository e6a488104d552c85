package testenv

import (
	"bytes"
	"os"
)

// logTail is the end of a server's log for an error message, empty when there
// is none.
func logTail(path string) string {
	const limit = 1500 // bytes
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(text) > limit {
		text = text[len(text)-limit:]
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest
		}
	}
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return ""
	}
	return "\nend of " + path + ":\n" + string(text)
}

// portTaken tells whether the server's log ends with the complaint that
// somebody else listens on its port.
func (p *Postgres) portTaken() bool {
	text, err := os.ReadFile(p.LogFile())
	return err == nil && bytes.Contains(text, []byte("Address already in use"))
}
