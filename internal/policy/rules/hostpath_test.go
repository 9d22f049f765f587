package rules

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestHostPathsOfRules: the operator names paths as the machine of the daemon has them.
func TestHostPathsOfRules(t *testing.T) {
	for _, test := range []struct {
		system, path string
		code         api.Code
	}{
		{"windows", `D:\Shared`, ""},
		{"windows", `c:/users/ann/key`, ""},
		{"windows", `/srv/data`, api.CodeInvalid},
		{"windows", `C:data`, api.CodeInvalid},
		{"windows", `\\server\share`, api.CodeDenied},
		{"windows", `\\.\pipe\docker_engine`, api.CodeDenied},
		{"windows", `C:\PROGRA~1`, api.CodeInvalid},
		{"linux", `/srv/data`, ""},
		{"linux", `D:\Shared`, api.CodeInvalid},
		{"darwin", `/Users/ann/key`, ""},
		{"darwin", `D:\Shared`, api.CodeInvalid},
	} {
		var err error
		if _, e := HostPathOn(test.system, "root", test.path); e != nil {
			err = e
		}
		if api.CodeOf(err) != test.code {
			t.Errorf("%s on %s: %v, want %q", test.path, test.system, err, test.code)
		}
	}
}
