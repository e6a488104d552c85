// Package compose tests compose.yaml and Dockerfile without a container engine:
// what compose-go reads of the one is checked and then done by hand, with the
// program that the other builds and with real servers.
package compose
