package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3/database"
)

// A store tells goose where the versions of a set are recorded. goose's own
// PostgreSQL store splits the table's name at its dots, so it cannot hold a
// schema whose name has one.
type store struct{ set, schema string } // set is the table's name

var _ database.StoreExtender = store{}

func (s store) Tablename() string { return quote(s.schema) + "." + quote(s.set) }

// TableExists is always true: the table is made before goose is called, since
// goose would try it again for seconds where the role may not.
func (s store) TableExists(context.Context, database.DBTxConn) (bool, error) { return true, nil }

func (s store) CreateVersionTable(context.Context, database.DBTxConn) error {
	return database.ErrNotImplemented
}

func (s store) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, "INSERT INTO "+s.Tablename()+" (version) VALUES ($1)", req.Version)
	return err
}

func (s store) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+s.Tablename()+" WHERE version = $1", version)
	return err
}

func (s store) GetMigration(ctx context.Context, db database.DBTxConn, version int64) (*database.GetMigrationResult, error) {
	var at time.Time
	err := db.QueryRowContext(ctx, "SELECT applied_at FROM "+s.Tablename()+" WHERE version = $1", version).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d", database.ErrVersionNotFound, version)
	}
	if err != nil {
		return nil, err
	}
	return &database.GetMigrationResult{Timestamp: at, IsApplied: true}, nil
}

func (s store) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	var version sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT max(version) FROM "+s.Tablename()).Scan(&version); err != nil {
		return 0, err
	}
	if !version.Valid {
		return 0, database.ErrVersionNotFound
	}
	return version.Int64, nil
}

func (s store) ListMigrations(ctx context.Context, db database.DBTxConn) (list []*database.ListMigrationsResult, err error) {
	rows, err := db.QueryContext(ctx, "SELECT version FROM "+s.Tablename()+" ORDER BY version DESC")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		m := &database.ListMigrationsResult{IsApplied: true}
		if err := rows.Scan(&m.Version); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, rows.Err()
}
