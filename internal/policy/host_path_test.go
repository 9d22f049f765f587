package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// windows is a machine of Windows on which the caller owns every directory that the
// request leads to.
func windows(spec api.SandboxSpec, c policy.Caller, r rules.Rules) policy.Facts {
	f := facts()
	f.Windows, f.Home, f.UserHome = true, `C:\Users\Alice\AppData\Local\cloche`, `C:\Users\Alice`
	f.Dirs = map[string]policy.DirFact{}
	for _, p := range policy.WindowsPaths(spec, c, r) {
		f.Dirs[p] = dir(strings.ToUpper(policy.WindowsName(p)), c.UID)
	}
	return f
}

// TestWindowsPaths: what a path of Windows leads to is judged and not how it is written,
// and on a host of another kind it is refused with the reason.
func TestWindowsPaths(t *testing.T) {
	blocked := func(rule string) want { return want{code: api.CodeDenied, rule: rule} }
	invalid := func(says string) want { return want{code: api.CodeInvalid, says: says} }
	for p, want := range map[string]want{
		`C:\Users\Alice\project`:        {},
		`c:/users/alice/PROJECT/`:       {},
		`C:\\Users\\Alice\\\project`:    {},
		`\\?\C:\Users\Alice\project`:    {},
		`//?/C:/Users/Alice/project`:    {},
		`\??\C:\Users\Alice\project`:    {},
		`/c/Users/Alice/project`:        {},
		`D:\data`:                       {},
		`C:\WindowsApps2`:               {},
		`C:\Users\Alice\Program Files`:  {},
		`C:\Users\Alice\a~b`:            {},
		`C:\Users\Alice\über\日本`:        {},
		`C:\Users\Alice\console\comedy`: {},

		`C:\Windows`:                          blocked("blocked_path:Windows"),
		`c:\WINDOWS\System32`:                 blocked("blocked_path:Windows"),
		`C:/windows/`:                         blocked("blocked_path:Windows"),
		`/c/Windows`:                          blocked("blocked_path:Windows"),
		`\\?\C:\Windows`:                      blocked("blocked_path:Windows"),
		`\\.\C:\Windows`:                      blocked("blocked_path:Windows"),
		`D:\WiNdOwS`:                          blocked("blocked_path:Windows"),
		`C:\Program Files`:                    blocked("blocked_path:Program Files"),
		`c:/program files/Docker`:             blocked("blocked_path:Program Files"),
		`C:\PROGRAM FILES (X86)`:              blocked("blocked_path:Program Files (x86)"),
		`C:\ProgramData\docker`:               blocked("blocked_path:ProgramData"),
		`C:\`:                                 blocked("blocked_path:C:"),
		`c:/`:                                 blocked("blocked_path:C:"),
		`/c`:                                  blocked("blocked_path:C:"),
		`C:\Users`:                            blocked("blocked_path:Users"),
		`C:\Users\Bob`:                        blocked("blocked_path:home_directory"),
		`C:\Users\Alice`:                      blocked("blocked_path:home_directory"),
		`C:\Users\Bob\.SSH`:                   blocked("blocked_path:.ssh"),
		`C:\Users\Bob\.docker\run`:            blocked("blocked_path:.docker"),
		`C:\Users\Bob\AppData\Roaming`:        blocked("blocked_path:AppData"),
		`C:\users\alice\appdata\local\CLOCHE`: blocked("blocked_path:AppData"),
		`\\.\pipe\docker_engine`:              blocked("blocked_path:windows_device"),
		`//./pipe/docker_engine`:              blocked("blocked_path:windows_device"),
		`\\?\pipe\docker_engine`:              blocked("blocked_path:windows_device"),
		`\\?\GLOBALROOT\Device\x`:             blocked("blocked_path:windows_device"),
		`\\?\UNC\server\share`:                blocked("blocked_path:windows_device"),
		`\\.\PhysicalDrive0`:                  blocked("blocked_path:windows_device"),
		`\\server\c$\Windows`:                 blocked("blocked_path:windows_share"),
		`//server/share`:                      blocked("blocked_path:windows_share"),

		`C:\Windows.`:                 invalid("ends with a dot"),
		`C:\Windows \System32`:        invalid("ends with a dot or a space"),
		`C:\data\...`:                 invalid("ends with a dot"),
		`C:\data\..\Windows`:          invalid("goes somewhere else"),
		`C:\.\Windows`:                invalid("goes somewhere else"),
		`C:\PROGRA~1`:                 invalid("short form"),
		`C:\progra~2\Docker`:          invalid("short form"),
		`C:\data\LONGNA~12.TXT`:       invalid("short form"),
		`C:\Windows::$INDEX_ALLOCATI`: invalid("stream"),
		`C:\data:stream`:              invalid("stream"),
		`C:\data\nul`:                 invalid("device"),
		`C:\data\COM1.txt`:            invalid("device"),
		`C:\data\con `:                invalid("ends with"),
		`C:\da?ta`:                    invalid("no name"),
		"C:\\da\x01ta":                invalid("no name"),
		"C:\\da\x00ta":                invalid("no name"),
		"C:\\da\xffta":                invalid("no text|not text"),
		`C:Windows`:                   invalid("no drive"),
		`C:`:                          invalid("no drive"),
		`\Windows`:                    invalid("no drive"),
		`/etc`:                        invalid("no drive"),
		`data`:                        invalid("no drive"),
		``:                            invalid("empty"),
	} {
		for who, c := range map[string]policy.Caller{"operator": operator, "root": root} {
			for _, spec := range []api.SandboxSpec{mount(p, false), mount(p, true)} {
				_, err := policy.Decide(policy.Request{Spec: spec, Facts: windows(spec, c, rules.Rules{})}, c, rules.Rules{})
				if api.CodeOf(err) != want.code {
					t.Errorf("%s names %q: %v, want %q", who, p, err, want.code)
					continue
				}
				if e, ok := err.(*api.Error); ok && (e.Hint == "" || want.rule != "" && e.Rule != want.rule || !containsAny(e.Message, want.says)) {
					t.Errorf("%s names %q: %v by the rule %q", who, p, err, e.Rule)
				}
			}
		}
	}
	for _, p := range []string{`C:\Users\Alice\project`, `c:/data`, `\\server\share`, `\\?\C:\Windows`} {
		_, err := policy.Decide(policy.Request{Spec: mount(p, true), Facts: facts()}, operator, rules.Rules{})
		want{code: api.CodeInvalid, field: "mounts[0].source", says: "path of Windows"}.check(t, err)
	}
}

// containsAny is true where text has one of the alternatives.
func containsAny(text, alternatives string) bool {
	return slices.ContainsFunc(strings.Split(alternatives, "|"), func(s string) bool { return strings.Contains(text, s) })
}

// TestWindowsGrants: what the operator grants and blocks is meant in every spelling.
func TestWindowsGrants(t *testing.T) {
	set := rules.Rules{Mounts: []rules.MountRule{{Root: `D:\Shared`, Write: true}}, BlockedPaths: []string{`d:/shared/Private`}}
	for p, code := range map[string]api.Code{
		`d:\shared\x`: "", `/d/SHARED`: api.CodeDenied, `D:\Shared\PRIVATE\y`: api.CodeDenied, `D:\Sharedness`: api.CodeDenied, `C:\Shared`: api.CodeDenied,
	} {
		spec := mount(p, false)
		_, err := policy.Decide(policy.Request{Spec: spec, Facts: windows(spec, tenant, set)}, tenant, set)
		if api.CodeOf(err) != code {
			t.Errorf("a tenant names %s: %v, want %q", p, err, code)
		}
	}
}

// FuzzWindowsPath: whatever is granted has a name that is granted again and means the
// same, and that holds nothing by which Windows would find another file.
func FuzzWindowsPath(f *testing.F) {
	for _, seed := range []string{`C:\data`, `\\?\C:\a`, `/c/x`, `\\server\share`, `C:\a.\b`, `C:\PROGRA~1`, `C:\a:b`, `//./pipe/x`, `C:\İ`, `C:\nul.x`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		for _, name := range policy.WindowsPaths(mount(p, true), operator, rules.Rules{}) {
			if again := policy.WindowsPaths(mount(policy.WindowsName(name), true), operator, rules.Rules{}); !slices.Equal(again, []string{name}) {
				t.Errorf("%q became %q, and that %q", p, name, again)
			}
			drive, below := name[:3], name[3:]
			if drive[0] != '/' || drive[2] != ':' || below == "" || strings.ContainsAny(below, ":\\*?\"<>|\x00") || strings.HasPrefix(below, "/windows/") || below == "/windows" {
				t.Errorf("%q became %q", p, name)
			}
			for element := range strings.SplitSeq(below[1:], "/") {
				if element == "" || strings.TrimRight(element, ". ") != element {
					t.Errorf("%q became %q, with the element %q", p, name, element)
				}
			}
		}
	})
}
