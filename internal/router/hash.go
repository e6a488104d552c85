package router

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
)

// The hashed form. Its names and order are part of what releases keep the
// same: a new setting is added with omitempty, so that who does not use it
// keeps his hash.
type hashedConfig struct {
	Version     int           `json:"version"`
	Tables      []hashedTable `json:"tables"`
	Routes      []hashedRoute `json:"routes"`
	Lean        bool          `json:"lean"`
	CloudEvents bool          `json:"cloud_events"`
}

type hashedTable struct {
	Schema  string            `json:"schema"`
	Name    string            `json:"name"`
	Columns []string          `json:"columns"`
	Extra   map[string]string `json:"extra"`
}

type hashedRoute struct {
	Table   string      `json:"table"`
	Types   []string    `json:"types"`
	Stream  string      `json:"stream"`
	Subject string      `json:"subject"`
	Skip    bool        `json:"skip"`
	Headers [][2]string `json:"headers"`
}

// hashOf hashes what decides about messages, with the defaults filled in: to
// write a default out changes nothing.
func hashOf(cfg Config) string {
	h := hashedConfig{Version: 1, Lean: cfg.Lean, CloudEvents: cfg.CloudEvents}
	for _, t := range cfg.Tables {
		c := t.Columns.Effective()
		ht := hashedTable{
			Schema: t.Schema, Name: t.Name, Extra: map[string]string{},
			Columns: []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers, c.CreatedAt},
		}
		maps.Copy(ht.Extra, c.Extra)
		h.Tables = append(h.Tables, ht)
	}
	for _, rt := range cfg.Routes {
		hr := hashedRoute{Table: rt.Table, Types: append([]string{}, rt.EventTypes...), Skip: rt.Skip, Headers: [][2]string{}}
		if !rt.Skip {
			hr.Stream, hr.Subject = rt.Stream, subjectOf(rt)
			for _, e := range rt.Headers {
				hr.Headers = append(hr.Headers, [2]string{e.Name, e.Value})
			}
		}
		h.Routes = append(h.Routes, hr)
	}
	b, err := json.Marshal(h)
	if err != nil { // strings, bools and maps of strings always have a form
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func subjectOf(rt Route) string {
	if rt.Subject == "" {
		return DefaultSubject
	}
	return rt.Subject
}
