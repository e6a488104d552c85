package slot

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// OldestVersion is the oldest server_version_num that the relay works with:
// publications have had row filters, column lists and schemas since then.
const OldestVersion = 150000

// Server is what a PostgreSQL server says of itself and of the role that asks.
type Server struct {
	Version           int    // such as 150018
	VersionText       string // such as 15.18
	Recovery          bool   // a standby
	WALLevel          string
	Database, User    string
	Superuser         bool
	Replication       bool   // the role's own attribute; a group's does not count
	ReplicationGrant  string // role that gives the right on a managed service, where User is a member of it
	ServiceRole       string // role that gives the right on this managed service; empty elsewhere
	ReplicationGroup  string // role with the attribute of which User is a mere member
	Slots, MaxSlots   int    // in use, and how many there may be
	Senders           int    // replication connections, this program's other ones not counted
	MaxSenders        int
	Pooled            bool   // the session runs on another backend than the one that the connection was made to
	SenderTimeout     string // wal_sender_timeout
	KeepSize          string // max_slot_wal_keep_size; -1 for no limit
	KeepBytes         int64
	IdleSlotTimeout   string // idle_replication_slot_timeout; empty before PostgreSQL 18, 0 for none
	IdleSlotSeconds   int64
	SynchronousNames  string // synchronous_standby_names
	SynchronousCommit string
}

// serviceRoles stand for the attribute REPLICATION on managed services that keep
// the attribute to themselves.
var serviceRoles = []string{"rds_replication"}

const (
	slotCounts = `(SELECT count(*) FROM pg_replication_slots), current_setting('max_replication_slots')::int`
	slotsSQL   = `SELECT ` + slotCounts
)

const serverSQL = `SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
	current_setting('wal_level'), current_database()::text, current_user::text, r.rolsuper, r.rolreplication,
	coalesce((SELECT rolname::text FROM pg_roles g WHERE g.rolname = ANY ($1) AND pg_has_role(current_user, g.oid, 'MEMBER') LIMIT 1), ''),
	coalesce((SELECT rolname::text FROM pg_roles g WHERE g.rolname = ANY ($1) LIMIT 1), ''),
	coalesce((SELECT rolname::text FROM pg_roles g WHERE g.rolreplication AND g.rolname <> current_user
		AND pg_has_role(current_user, g.oid, 'MEMBER') ORDER BY 1 LIMIT 1), ''),
	` + slotCounts + `,
	(SELECT count(*) FROM pg_stat_replication WHERE coalesce(application_name, '') <> $2), current_setting('max_wal_senders')::int,
	pg_backend_pid(), current_setting('wal_sender_timeout'), current_setting('max_slot_wal_keep_size'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') * 1048576,
	coalesce(current_setting('idle_replication_slot_timeout', true), ''),
	coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0),
	current_setting('synchronous_standby_names'), current_setting('synchronous_commit')
FROM pg_roles r WHERE r.rolname = current_user`

// InspectServer asks what kind of server this is and what the role may do.
// Replication connections named except are not counted.
func InspectServer(ctx context.Context, conn *pgx.Conn, except string) (Server, error) {
	var s Server
	var pid uint32
	err := conn.QueryRow(ctx, serverSQL, serviceRoles, except).Scan(&s.Version, &s.VersionText, &s.Recovery, &s.WALLevel, &s.Database, &s.User,
		&s.Superuser, &s.Replication, &s.ReplicationGrant, &s.ServiceRole, &s.ReplicationGroup, &s.Slots, &s.MaxSlots, &s.Senders, &s.MaxSenders,
		&pid, &s.SenderTimeout, &s.KeepSize, &s.KeepBytes, &s.IdleSlotTimeout, &s.IdleSlotSeconds, &s.SynchronousNames, &s.SynchronousCommit)
	if err != nil {
		return Server{}, fmt.Errorf("ask the server for its version and settings: %w", err)
	}
	// A pooler answers a connection itself and lends it a backend later.
	s.Pooled = pid != conn.PgConn().PID()
	return s, nil
}

// Check says why no relay can work with this server, whatever the role and the
// objects; nil when one can. What is wrong with the server comes before what
// follows from it, so that its lack is not taken for a lack of rights.
func (s Server) Check() error {
	for _, check := range []func() error{s.CheckVersion, s.CheckPrimary, s.CheckWALLevel} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// CheckVersion says that the server is too old.
func (s Server) CheckVersion() error {
	if s.Version >= OldestVersion {
		return nil
	}
	return &MisfitError{
		Object: "PostgreSQL " + s.VersionText, Problem: "is too old: walrelay needs 15 or newer",
		Fix: "upgrade the server",
	}
}

// CheckPrimary says that the server is a standby.
func (s Server) CheckPrimary() error {
	if !s.Recovery {
		return nil
	}
	return &MisfitError{
		Object: "the server", Problem: "is a standby, in recovery, where the relay can write nothing",
		Fix: "give the address of its primary; target_session_attrs=read-write finds it among several hosts",
	}
}

// CheckWALLevel says that the server writes too little for logical slots.
func (s Server) CheckWALLevel() error {
	if s.WALLevel == "logical" {
		return nil
	}
	return &MisfitError{
		Object: "setting wal_level", Problem: "is " + s.WALLevel + ", and a logical slot needs logical",
		Fix: "ALTER SYSTEM SET wal_level = logical; -- counts after a restart of PostgreSQL; managed services have a setting of their own for it, " +
			"such as rds.logical_replication or cloudsql.logical_decoding",
	}
}

// CheckRole says that the role has nothing that lets it make a replication
// connection. What counts is whether one can be made: a service may give the
// right by ways that are not known here, so ask only after a refusal.
func (s Server) CheckRole() error {
	if s.Superuser || s.Replication || s.ReplicationGrant != "" {
		return nil
	}
	user := pgx.Identifier{s.User}.Sanitize()
	m := &MisfitError{
		Object: "role " + user, Problem: "lacks the attribute REPLICATION",
		Fix: "ALTER ROLE " + user + " REPLICATION; -- as a superuser, or on a managed service as its administrator",
	}
	if s.ReplicationGroup != "" {
		m.Problem += "; that of role " + pgx.Identifier{s.ReplicationGroup}.Sanitize() + ", of which it is a member, does not count"
	}
	if s.ServiceRole != "" {
		m.Problem = "is no member of role " + s.ServiceRole + ", which stands for REPLICATION on this service"
		m.Fix = "GRANT " + pgx.Identifier{s.ServiceRole}.Sanitize() + " TO " + user + ";"
	}
	return m
}

// CheckSlots says that no further slot can be made.
func (s Server) CheckSlots() error {
	if s.Slots < s.MaxSlots {
		return nil
	}
	return &MisfitError{
		Object: "setting max_replication_slots", Problem: fmt.Sprintf("lets no further slot be made: %d of %d are in use", s.Slots, s.MaxSlots),
		Fix: "ALTER SYSTEM SET max_replication_slots = " + strconv.Itoa(max(2*s.MaxSlots, 10)) +
			"; -- counts after a restart of PostgreSQL; or drop a slot that nobody needs: SELECT slot_name, active FROM pg_replication_slots",
	}
}

// CheckSenders says that no further replication connection can be made.
func (s Server) CheckSenders() error {
	if s.Senders < s.MaxSenders {
		return nil
	}
	return &MisfitError{
		Object: "setting max_wal_senders", Problem: fmt.Sprintf("lets no further replication connection be made: %d of %d are in use", s.Senders, s.MaxSenders),
		Fix: "ALTER SYSTEM SET max_wal_senders = " + strconv.Itoa(max(2*s.MaxSenders, 10)) +
			"; -- counts after a restart of PostgreSQL; or end one that nobody needs: SELECT pid, application_name FROM pg_stat_replication",
	}
}
