package slot

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The connections that can be refused.
const (
	ForSQL         = "SQL"
	ForReplication = "replication"
)

// Refusal turns what a server says to a connection that it does not take into
// what an operator can do about it; any other error is given back as it is. s
// is what the server says on a SQL connection, zero where there is none.
func Refusal(err error, purpose string, s Server) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	user, database, host := s.User, s.Database, ""
	if failed, ok := errors.AsType[*pgconn.ConnectError](err); ok && failed.Config != nil {
		user, database, host = failed.Config.User, failed.Config.Database, failed.Config.Host
	}
	switch {
	case strings.Contains(pgErr.Message, "unsupported startup parameter"),
		strings.Contains(pgErr.Message, "extended query protocol not supported"):
		says, _, _ := strings.Cut(pgErr.Message, ":") // which one comes first is chance
		return pooler(host, purpose, says)
	case pgErr.Code == "28000" && strings.Contains(pgErr.Message, "pg_hba.conf"):
		return &MisfitError{
			Object: "pg_hba.conf", Problem: "lets role " + pgx.Identifier{user}.Sanitize() + " not make a " + purpose + " connection to database " +
				pgx.Identifier{database}.Sanitize() + " (" + pgErr.Message + ")",
			Fix: "add the line: hostssl " + hbaName(database) + " " + hbaName(user) + " ADDRESS/MASK scram-sha-256, then SELECT pg_reload_conf(); " +
				"a replication connection of a relay is matched by the database, not by the word replication",
		}
	case purpose != ForReplication || s.User == "":
		return err
	case pgErr.Code == "42501":
		if lacks := s.CheckRole(); lacks != nil {
			return lacks
		}
	case pgErr.Code == "53300":
		s.Senders = max(s.Senders, s.MaxSenders) // the server says so, whatever the count was
		return s.CheckSenders()
	}
	return err
}

func pooler(host, purpose, says string) error {
	m := &MisfitError{
		Object: "the " + purpose + " connection to " + host, Problem: "leads through what looks like a pooler (" + says + ")",
		Fix: "give the server's own address with --replication-url",
	}
	if purpose == ForSQL {
		m.Problem += ", which does not pass on the settings that the relay makes for its session"
		m.Fix = "give the server's own address with --database-url; the relay needs three connections, no pool"
	}
	return m
}

// hbaName quotes what pg_hba.conf would take apart or read as a word of its own.
func hbaName(name string) string {
	switch name {
	case "all", "sameuser", "samerole", "samegroup", "replication":
		return `"` + name + `"`
	}
	if strings.ContainsAny(name, " \t,#\"@+/") {
		return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return name
}
