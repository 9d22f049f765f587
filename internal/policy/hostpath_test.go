package policy

import (
	"testing"

	"github.com/cloche-dev/cloche"
)

// TestHostPathsOfRules: the operator names paths as the machine of the daemon has them.
func TestHostPathsOfRules(t *testing.T) {
	for _, test := range []struct {
		system, path string
		code         cloche.Code
	}{
		{"windows", `D:\Shared`, ""},
		{"windows", `c:/users/ann/key`, ""},
		{"windows", `/srv/data`, cloche.CodeInvalid},
		{"windows", `C:data`, cloche.CodeInvalid},
		{"windows", `\\server\share`, cloche.CodeDenied},
		{"windows", `\\.\pipe\docker_engine`, cloche.CodeDenied},
		{"windows", `C:\PROGRA~1`, cloche.CodeInvalid},
		{"linux", `/srv/data`, ""},
		{"linux", `D:\Shared`, cloche.CodeInvalid},
		{"darwin", `/Users/ann/key`, ""},
		{"darwin", `D:\Shared`, cloche.CodeInvalid},
	} {
		var err error
		if _, e := hostPathOn(test.system, "root", test.path); e != nil {
			err = e
		}
		if cloche.CodeOf(err) != test.code {
			t.Errorf("%s on %s: %v, want %q", test.path, test.system, err, test.code)
		}
	}
}
