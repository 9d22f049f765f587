// Package session is the agent's end of a connection with the host. A [Session] is a connection that
// has shown the token; a [Call] is one of its streams.
package session
