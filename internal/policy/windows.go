package policy

import (
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
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

// ruleWindowsDevice blocks pipes and devices, including the pipe of Docker, which gives control of
// the machine.
const ruleWindowsDevice = "blocked_path:windows_device"

// cleanHost checks one path of the host and returns it clean.
func (d *decision) cleanHost(field, p string) (string, *api.Error) {
	if !d.facts.Windows {
		return cleanAbs(field, p)
	}
	return cleanWindows(field, p)
}

// ruleHostPath checks a path in the operator's rules, in the syntax of the machine that reads them.
func ruleHostPath(field, p string) (string, *api.Error) {
	return hostPathOn(runtime.GOOS, field, p)
}

func hostPathOn(system, field, p string) (string, *api.Error) {
	if system == "windows" {
		return cleanWindows(field, p)
	}
	return cleanAbs(field, p)
}

// cleanRule is clean for a path of the operator's rules. It returns "" for a path that has no
// meaning on this host.
func (d *decision) cleanRule(p string) string {
	if !d.facts.Windows {
		return clean(p)
	}
	c, err := cleanWindows("", p)
	if err != nil {
		return ""
	}
	return c
}

// cleanWindows checks a Windows path and returns the form that policy compares.
func cleanWindows(field, p string) (string, *api.Error) {
	const hint = `write a path with its drive, such as C:\Users\ann\project`
	switch {
	case p == "":
		return "", api.Invalid(field, "%s is empty", field).WithHint(hint)
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case !utf8.ValidString(p):
		return "", api.Invalid(field, "%s %s is not text", field, show(p)).WithHint(hint)
	}
	rest := strings.ReplaceAll(p, "/", `\`)
	device := false
	for _, prefix := range []string{`\\?\`, `\\.\`, `\??\`} {
		if after, ok := strings.CutPrefix(rest, prefix); ok {
			rest, device = after, true
			break
		}
	}
	if unixDrive := len(rest) >= 2 && rest[0] == '\\' && isLetter(rest[1]) && (len(rest) == 2 || rest[2] == '\\'); unixDrive && !device {
		rest = rest[1:2] + ":" + rest[2:] + `\` // as in /c/data
	}
	drive := len(rest) >= 3 && isLetter(rest[0]) && rest[1] == ':' && rest[2] == '\\'
	switch {
	case drive:
	case device:
		return "", denied(ruleWindowsDevice, field, "%s %s is a device, a pipe or a share under another name", field, show(p)).WithHint(hint)
	case strings.HasPrefix(rest, `\\`):
		return "", denied("blocked_path:windows_share", field, "%s %s is a share of another machine", field, show(p)).WithHint(hint)
	default:
		return "", api.Invalid(field, "%s %s has no drive, or is relative to a current directory", field, show(p)).WithHint(hint)
	}
	out := "/" + strings.ToLower(rest[:2])
	for element := range strings.SplitSeq(rest[3:], `\`) {
		if element == "" {
			continue
		}
		if what := wrongElement(element); what != "" {
			return "", api.Invalid(field, "%s %s has the element %s, which %s", field, show(p), show(element), what).WithHint("write every name in full, as the directory has it")
		}
		out += "/" + strings.ToLower(element)
	}
	return out, nil
}

// WindowsName returns a result of WindowsPaths in Windows syntax.
func WindowsName(p string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(p, "/"), "/", `\`)
	if strings.HasSuffix(name, ":") {
		name += `\`
	}
	return name
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// wrongElement returns why one element of a Windows path could name something else, or "".
func wrongElement(e string) string {
	switch {
	case e == "." || e == "..":
		return "goes somewhere else"
	case strings.TrimRight(e, ". ") != e:
		return "ends with a dot or a space, and Windows leaves those out"
	case strings.Contains(e, ":"):
		return "names a stream of a file"
	case strings.ContainsAny(e, "<>\"|?*") || strings.ContainsFunc(e, func(r rune) bool { return r < ' ' }):
		return "is no name"
	case isShortName(e):
		return "looks like the short form of another name"
	case isDeviceName(e):
		return "names a device"
	}
	return ""
}

// isShortName reports whether Windows could have generated the name from a longer one: a tilde and
// a number before the last dot.
func isShortName(e string) bool {
	stem := e
	if i := strings.LastIndexByte(e, '.'); i >= 0 {
		stem = e[:i]
	}
	i := strings.LastIndexByte(stem, '~')
	return i >= 0 && i+1 < len(stem) && strings.Trim(stem[i+1:], "0123456789") == ""
}

// isDeviceName reports whether the name is a device in every directory, with any extension.
func isDeviceName(e string) bool {
	stem, _, _ := strings.Cut(strings.ToLower(e), ".")
	stem = strings.TrimRight(stem, " ")
	if slices.Contains([]string{"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}, stem) {
		return true
	}
	port, n := "", ""
	if len(stem) > 3 {
		port, n = stem[:3], stem[3:]
	}
	return (port == "com" || port == "lpt") && slices.Contains([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³"}, n)
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
