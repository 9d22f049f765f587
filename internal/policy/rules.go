package policy

import (
	"reflect"

	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// AtStart returns the changed keys that a daemon reads only when it starts.
func AtStart(old, changed rules.Rules) []string {
	old.Audit.Argv, changed.Audit.Argv = "", ""
	var out []string
	for _, k := range []struct {
		key      string
		old, now any
	}{
		{"registries.*.mirrors", old.Mirrors(), changed.Mirrors()},
		{"registries.*.insecure", old.InsecureRegistries(), changed.InsecureRegistries()},
		{"retention", old.Retention, changed.Retention},
		{"audit", old.Audit, changed.Audit},
		{"tls", old.TLS, changed.TLS},
	} {
		if !reflect.DeepEqual(k.old, k.now) {
			out = append(out, k.key)
		}
	}
	return out
}
