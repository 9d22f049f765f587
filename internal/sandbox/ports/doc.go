// Package ports keeps the open ports of sandboxes, which have a URL, and connects to them.
//
// Connections go through a connection to the agent that they have for themselves, so that a page
// with many sockets does not slow down execs and file calls of its sandbox.
package ports
