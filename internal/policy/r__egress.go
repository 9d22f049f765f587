package policy

import (
	"net/netip"
)

// EgressUpstream is an HTTP proxy that gets CONNECT requests by name.
type EgressUpstream struct {
	// Address is HOST:PORT.
	Address string `json:"address"`
	// TLS means that the connection to the proxy itself uses TLS.
	TLS bool `json:"tls,omitempty"`
	// Except lists names with direct connections; a name with a leading dot includes all names
	// below it. ExceptAddrs is the same for addresses.
	Except      []string       `json:"except,omitempty"`
	ExceptAddrs []netip.Prefix `json:"except_addrs,omitempty"`
}

// Limits of a request.
const (
	fieldEgress = "egress"
)
