// Package libpq reads connection settings of PostgreSQL with the meaning that
// they have for libpq, on every connection alike: it completes what pgx
// understands differently, and says which mode a failed connection had. It
// owns no connection.
package libpq
