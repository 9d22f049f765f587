package policy

import (
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// ruleWindowsDevice blocks pipes and devices, including the pipe of Docker, which gives control of
// the machine.
const ruleWindowsDevice = "blocked_path:windows_device"

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
