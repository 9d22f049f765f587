// Package ingress serves ports of sandboxes as URLs. Each open port has an origin of its own, such as
// http://8000-ID.localhost:PORT, on listeners that serve nothing of the API.
//
// A [Server] asks core for each request whether it can use the port that its Host names, and passes
// it to a [Proxy], which carries it over the agent's port stream. What comes from clients and from
// sandboxes is not trusted: a client gets one answer for a port that is not open and for one that it
// may not use, and a sandbox never sees the token or the cookie of its port.
package ingress
