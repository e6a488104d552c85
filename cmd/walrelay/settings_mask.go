package main

import (
	"net/url"
	"regexp"
	"strings"
)

const masked = "xxxxx"

// maskURLs hides what is secret in one URL or in several, separated by commas.
// A user without a password is NATS' way to write a token, so it is hidden
// there; PostgreSQL's user is not.
func maskURLs(list string, userIsSecret bool) string {
	parts := strings.Split(list, ",")
	for i, p := range parts {
		parts[i] = maskURL(p, userIsSecret)
	}
	return strings.Join(parts, ",")
}

func maskURL(raw string, userIsSecret bool) string {
	if !strings.Contains(raw, "@") && !strings.Contains(raw, "?") {
		return raw
	}
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" {
		return masked
	}
	if u.User != nil {
		_, hasPassword := u.User.Password()
		switch {
		case hasPassword:
			u.User = url.UserPassword(u.User.Username(), masked)
		case userIsSecret:
			u.User = url.User(masked)
		}
	}
	query := strings.Split(u.RawQuery, "&")
	for i, q := range query {
		if name, _, ok := strings.Cut(q, "="); ok && secretName(name) {
			query[i] = name + "=" + masked
		}
	}
	u.RawQuery = strings.Join(query, "&")
	return u.String()
}

func secretName(name string) bool {
	return strings.Contains(strings.ToLower(name), "password")
}

// maskDSN hides the secrets of a PostgreSQL URL or of key=value pairs.
func maskDSN(dsn string) string {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		// Several hosts have commas between them and one user before all.
		return maskURL(dsn, false)
	}
	if strings.Contains(dsn, "://") {
		return masked
	}
	return pairs.ReplaceAllStringFunc(dsn, func(pair string) string {
		name, _, _ := strings.Cut(pair, "=")
		if secretName(name) {
			return strings.TrimSpace(name) + "=" + masked
		}
		return pair
	})
}

// pairs matches one key and its value as libpq reads them: quotes and
// backslashes protect blanks. A quote that is not closed takes all the rest.
var pairs = regexp.MustCompile(`[A-Za-z_]+\s*=\s*(?:'(?:\\(?s:.)|[^'\\])*(?:'|$)|(?:\\(?s:.)|[^\s'\\])(?:\\(?s:.)|[^\s\\])*)`)

var (
	userInfo   = regexp.MustCompile(`://.*@`)
	passwordIs = regexp.MustCompile(`(?i)(password\s*=).*`)
)

// maskText hides what looks like a secret in the message of somebody else's
// code. It rather hides too much.
func maskText(s string) string {
	return passwordIs.ReplaceAllString(userInfo.ReplaceAllString(s, "://"+masked+"@"), "${1}"+masked)
}
