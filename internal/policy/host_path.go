package policy

import (
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// A Windows host has many names for each directory. Policy compares one form: the name with a
// drive, in lower case, such as "/c:/users/ann/project". No other host has such a path, and the
// functions for other paths work with it. Ambiguous names are refused.

// windowsBlocked returns directories of a drive that no sandbox can see. Exact ones do not block
// what is below.
func windowsBlocked() []blockedPath {
	return []blockedPath{
		{rule: "blocked_path:Windows", path: "/windows"},
		{rule: "blocked_path:Program Files", path: "/program files"},
		{rule: "blocked_path:Program Files (x86)", path: "/program files (x86)"},
		{rule: "blocked_path:Program Files (Arm)", path: "/program files (arm)"},
		{rule: "blocked_path:ProgramData", path: "/programdata"},
		{rule: "blocked_path:System Volume Information", path: "/system volume information"},
		{rule: "blocked_path:$Recycle.Bin", path: "/$recycle.bin"},
		{rule: "blocked_path:Recovery", path: "/recovery"},
		{rule: "blocked_path:Boot", path: "/boot"},
		{rule: "blocked_path:EFI", path: "/efi"},
		{rule: "blocked_path:Documents and Settings", path: "/documents and settings"},
		{rule: "blocked_path:Users", path: "/users", exact: true},
	}
}

// cleanHost checks one path of the host and returns it clean.
func (d *decision) cleanHost(field, p string) (string, *api.Error) {
	if !d.facts.Windows {
		return rules.CleanAbs(field, p)
	}
	return rules.CleanWindows(field, p)
}

// cleanRule is clean for a path of the operator's rules. It returns "" for a path that has no
// meaning on this host.
func (d *decision) cleanRule(p string) string {
	if !d.facts.Windows {
		return clean(p)
	}
	c, err := rules.CleanWindows("", p)
	if err != nil {
		return ""
	}
	return c
}

// WindowsName returns a result of WindowsPaths in Windows syntax.
func WindowsName(p string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(p, "/"), "/", `\`)
	if strings.HasSuffix(name, ":") {
		name += `\`
	}
	return name
}

// blockedOnWindows returns the Windows rule that blocks p, a clean Windows path, or "".
func blockedOnWindows(p string) string {
	drive, below := p[:len("/c:")], p[len("/c:"):]
	if below == "" {
		return "blocked_path:" + strings.ToUpper(drive[1:])
	}
	for _, b := range windowsBlocked() {
		if b.blocks(below) {
			return b.rule
		}
	}
	elements := strings.Split(below[1:], "/")
	if elements[0] == "users" && len(elements) == 2 {
		return homeRule
	}
	if elements[0] == "users" && elements[2] == "appdata" {
		return "blocked_path:AppData"
	}
	return ""
}
