// Package testenv starts real servers for tests, benchmarks and the demo:
// PostgreSQL clusters in temporary folders, NATS servers in this process or as
// child processes that can be killed, and proxies that hold, swallow or cut
// what passes between them.
//
// Nothing stays behind. An [Env] owns all it started and its [Env.Close]
// stops it; a helper process does the same when this process ends without
// that, be it by kill -9, by a panic or by a test's time limit.
//
// Helper and child servers are this same program in another role, so [Main]
// has to be the first call of TestMain and of main. The package does not
// import testing, because the command's demo uses it; helpers that take a
// *testing.T are in package envtest. Servers listen on the loopback interface
// only. Linux only: elsewhere [New] returns an error.
package testenv
