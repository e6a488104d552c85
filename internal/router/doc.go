// Package router turns a row of an outbox table into a JetStream message, or
// says why it cannot be one.
//
// It owns the rules of docs/message.md: which route an event takes, its
// subject, id, headers and body, and what is refused before a client or server
// sees it. It is pure: values in, values out. The same row and configuration
// give the same message, so that every attempt is the same event.
package router
