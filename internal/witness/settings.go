package witness

// PinSettings are what every connection of ours sets, replication and SQL
// alike, so that PostgreSQL writes the same text whatever the server, the
// database or the role are set to: an event that is read again from its table
// must have the same bytes.
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
	}
}
