// Package envtest gives tests the servers of package testenv: each call takes
// a *testing.T and cleans up when that test ends. A server that cannot be had
// fails the test with what to do about it; no test is skipped for it.
//
// Every test package that uses it has
//
//	func TestMain(m *testing.M) { envtest.Main(m) }
package envtest
