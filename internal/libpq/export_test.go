package libpq

// Setting is what read finds of one setting.
func Setting(conninfo, name string) string { return read(conninfo).setting(name, "") }
