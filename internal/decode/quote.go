package decode

import "strings"

// quoteIdent gives a name as SQL reads it: as it is where that is possible,
// otherwise in double quotes.
func quoteIdent(name string) string {
	if isPlain(name) && !isReserved(name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// isPlain says that SQL reads name as a name and leaves its case alone.
func isPlain(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', c == '_':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}

// isReserved knows the words that PostgreSQL 15 to 18 do not take as the name
// of a table or schema without quotes.
func isReserved(word string) bool {
	switch word {
	case "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric",
		"authorization", "binary", "both", "case", "cast", "check", "collate", "collation",
		"column", "concurrently", "constraint", "create", "cross", "current_catalog",
		"current_date", "current_role", "current_schema", "current_time", "current_timestamp",
		"current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except",
		"false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having",
		"ilike", "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral",
		"leading", "left", "like", "limit", "localtime", "localtimestamp", "natural", "not",
		"notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing",
		"primary", "references", "returning", "right", "select", "session_user", "similar", "some",
		"symmetric", "system_user", "table", "tablesample", "then", "to", "trailing", "true",
		"union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window",
		"with":
		return true
	}
	return false
}
