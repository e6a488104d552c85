package witness

// PinSettings are what every connection of ours sets, replication and SQL
// alike, so that PostgreSQL writes the same text and does the same whatever the
// server, the database or the role are set to: an event that is read again
// from its table must have the same bytes, and no row may stay unseen.
func PinSettings() map[string]string {
	return map[string]string{
		"bytea_output":       "hex",
		"client_encoding":    "UTF8",
		"datestyle":          "ISO, MDY",
		"extra_float_digits": "1", // the shortest text that reads back exactly
		"intervalstyle":      "postgres",
		"lc_monetary":        "C",
		"search_path":        "pg_catalog",
		"timezone":           "UTC",
		"xmlbinary":          "base64",

		// A lock that waited for a takeover must see the new session; any
		// higher level gives a serialization error instead.
		"default_transaction_isolation": "read committed",
		"default_transaction_read_only": "off",
		// A policy that would hide rows of the outbox is an error then.
		"row_security": "off",
		// Every statement of ours is bounded by its context; a session that
		// listens for a shutdown is idle on purpose.
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"idle_session_timeout":                "0",
	}
}
