// Package dockertest starts Docker daemons and Podman services for tests: each with
// its own data and socket, gone without a trace when the test is over.
package dockertest
