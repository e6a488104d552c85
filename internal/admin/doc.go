// Package admin serves what a relay says of itself over HTTP: its status as
// JSON, whether it is alive and ready, and Prometheus metrics. Everything comes
// from one function that gives a walrelay.Status: a request never asks a server.
//
// There is nothing here that changes anything, and nothing secret.
package admin
