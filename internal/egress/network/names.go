//go:build linux && !remoteonly

package network

import (
	"fmt"

	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// redactedNames is a Store without names that have the value of a secret in them. In
// place of one it keeps a name that leads nowhere, so that its address is given to no
// other name: a later daemon refuses that address, and gives the name another one.
type redactedNames struct {
	resolver.Store
	redact func(string) string
}

// Add implements resolver.Store.
func (s redactedNames) Add(e resolver.Entry) error {
	if s.redact(string(e.Name)) != string(e.Name) {
		e.Name = rule.Name(fmt.Sprintf("n%x.redacted.invalid", e.Addr.As4()))
	}
	return s.Store.Add(e)
}
