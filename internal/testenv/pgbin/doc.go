// Package pgbin finds and installs the programs of PostgreSQL that tests and
// the demo run. It uses the standard library only, so that the installer is
// built in no time on a machine that has nothing yet.
package pgbin
