package libpq

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgservicefile"
)

// A source of settings that pgx reads and does not tell: the string itself,
// the service it may name, the environment. pgx has accepted the string.
type source struct {
	given, service map[string]string
}

func read(conninfo string) source {
	s := source{given: pairs(conninfo)}
	if rest, ok := cutScheme(conninfo); ok {
		s.given = query(rest)
	}
	name := s.setting("service", "PGSERVICE")
	if name == "" {
		return s
	}
	file, err := pgservicefile.ReadServicefile(s.setting("servicefile", "PGSERVICEFILE", ".pg_service.conf"))
	if err != nil {
		return s // pgx has read it a moment ago; it is being replaced
	}
	if service, err := file.GetService(name); err == nil {
		s.service = service.Settings
	}
	return s
}

// setting gives what counts: the string wins over the service, that over the
// environment, that over a file in the home folder.
func (s source) setting(name, variable string, home ...string) string {
	if v, ok := s.given[name]; ok {
		return v
	}
	if v, ok := s.service[name]; ok {
		return v
	}
	if v := os.Getenv(variable); v != "" || len(home) == 0 {
		return v
	}
	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(append([]string{dir}, home...)...)
}

func cutScheme(conninfo string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(conninfo, "postgresql://"); ok {
		return rest, true
	}
	return strings.CutPrefix(conninfo, "postgres://")
}

// query gives the parameters of a URL. A plus sign means itself.
func query(rest string) map[string]string {
	// A ? before the @ belongs to the password.
	if at := strings.IndexAny(rest, "@/"); at >= 0 && rest[at] == '@' {
		rest = rest[at+1:]
	}
	_, rest, _ = strings.Cut(rest, "?")
	found := map[string]string{}
	for pair := range strings.SplitSeq(rest, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.PathUnescape(value); err == nil {
			value = plain
		}
		found[name] = value
	}
	return found
}

// pairs gives the settings of a key=value string. Quotes and backslashes
// protect blanks.
func pairs(s string) map[string]string {
	const blank = " \t\n\r\v\f"
	found := map[string]string{}
	for {
		name, rest, ok := strings.Cut(s, "=")
		if !ok {
			return found
		}
		rest = strings.TrimLeft(rest, blank)
		quoted := strings.HasPrefix(rest, "'")
		if quoted {
			rest = rest[1:]
		}
		var value strings.Builder
		at := 0
		for ; at < len(rest); at++ {
			c := rest[at]
			if quoted && c == '\'' || !quoted && strings.IndexByte(blank, c) >= 0 {
				break
			}
			if c == '\\' {
				if at++; at == len(rest) {
					break
				}
				c = rest[at]
			}
			value.WriteByte(c)
		}
		found[strings.Trim(name, blank)] = value.String()
		s = rest[min(at+1, len(rest)):]
	}
}
