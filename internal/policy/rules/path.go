package rules

import (
	"path"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// Limits of the rules of one mount. Each rule becomes a mount, and needs another mount for every
// directory above it.
const (
	MaxPathRules = 64
	maxRuleDepth = 32
)

// AccessStrength orders access levels, weakest first.
func AccessStrength(a api.PathAccess) int {
	switch a {
	case api.AccessRead:
		return 1
	case api.AccessWrite:
		return 2
	}
	return 0
}

// MountAccess returns the access of a mount without rules.
func MountAccess(readOnly bool) api.PathAccess {
	if readOnly {
		return api.AccessRead
	}
	return api.AccessWrite
}

// APIPathRules converts path rules to the types of the API.
func APIPathRules(set []PathRule) []api.PathRule {
	var out []api.PathRule
	for _, r := range set {
		out = append(out, api.PathRule{Path: r.Path, Access: r.Access})
	}
	return out
}

// CleanPathRules checks the rules of a mount whose access is base. It returns them sorted, with
// parents first, and without rules that have no effect.
func CleanPathRules(field string, base api.PathAccess, set []api.PathRule) ([]api.PathRule, *api.Error) {
	if n := len(set); n > MaxPathRules {
		return nil, TooLarge(field, "%s has %d rules", field, n).WithHint("at most %d", MaxPathRules)
	}
	out := make([]api.PathRule, 0, len(set))
	for i, r := range set {
		one := ElementAt(field, i)
		p, err := cleanRelative(one+".path", r.Path)
		if err != nil {
			return nil, err
		}
		switch r.Access {
		case api.AccessNone, api.AccessRead, api.AccessWrite:
		default:
			return nil, api.Invalid(one+".access", "%s.access %s is not known", one, Quote(string(r.Access))).
				WithHint("write %s, %s or %s", api.AccessNone, api.AccessRead, api.AccessWrite)
		}
		if AccessStrength(r.Access) > AccessStrength(base) {
			return nil, api.Invalid(one+".access", "%s gives %s, and the mount itself is %s", one, r.Access, base).
				WithHint("rules only narrow what the mount gives")
		}
		if slices.ContainsFunc(out, func(o api.PathRule) bool { return o.Path == p }) {
			return nil, api.Invalid(one+".path", "%s.path %s has a rule already", one, Quote(p)).WithHint("give each path one rule")
		}
		out = append(out, api.PathRule{Path: p, Access: r.Access})
	}
	for i, r := range out {
		for _, above := range out {
			if above.Access == api.AccessNone && below(r.Path, above.Path) && r.Access != api.AccessNone {
				return nil, api.Invalid(ElementAt(field, i)+".path", "%s cannot be reached: there is no access to %s above it", Quote(r.Path), Quote(above.Path)).
					WithHint("deny what is beside it instead")
			}
		}
	}
	return SimplifyPathRules(base, out), nil
}

// cleanRelative checks a path below a mount.
func cleanRelative(field, p string) (string, *api.Error) {
	const hint = `write a path below the mount, such as "secrets" or "src/generated"`
	switch {
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case strings.HasPrefix(p, "/") || windowsPath(p):
		return "", api.Invalid(field, "%s %s is absolute", field, Quote(p)).WithHint(hint)
	case strings.ContainsRune(p, 0):
		return "", api.Invalid(field, "%s %s holds a NUL byte", field, Quote(p)).WithHint(hint)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", api.Invalid(field, `%s %s has an element ".."`, field, Quote(p)).WithHint(hint)
	case path.Clean(p) == ".":
		return "", api.Invalid(field, "%s %s is the whole mount", field, Quote(p)).WithHint(hint + "; the access of the mount itself is read_only")
	}
	if depth := strings.Count(path.Clean(p), "/") + 1; depth > maxRuleDepth {
		return "", TooLarge(field, "%s is a path of %d parts", field, depth).WithHint("at most %d; mount a directory that is nearer to it", maxRuleDepth)
	}
	return path.Clean(p), nil
}

// below reports whether p is below dir. Both are relative and clean.
func below(p, dir string) bool { return strings.HasPrefix(p, dir+"/") }

// AccessAt returns the access to p, relative and clean. The longest rule that contains it decides.
func AccessAt(base api.PathAccess, set []api.PathRule, p string) api.PathAccess {
	longest := -1
	for _, r := range set {
		if (r.Path == p || below(p, r.Path)) && len(r.Path) > longest {
			base, longest = r.Access, len(r.Path)
		}
	}
	return base
}

// SimplifyPathRules sorts rules and removes those without effect.
func SimplifyPathRules(base api.PathAccess, set []api.PathRule) []api.PathRule {
	slices.SortFunc(set, func(a, b api.PathRule) int { return strings.Compare(a.Path, b.Path) })
	var out []api.PathRule
	for _, r := range set { // parents come first
		if AccessAt(base, out, path.Dir(r.Path)) != r.Access {
			out = append(out, r)
		}
	}
	return out
}

// ruleWindowsDevice blocks pipes and devices, including the pipe of Docker, which gives control of
// the machine.
const ruleWindowsDevice = "blocked_path:windows_device"

// ruleHostPath checks a path in the operator's rules, in the syntax of the machine that reads them.
func ruleHostPath(field, p string) (string, *api.Error) {
	return HostPathOn(runtime.GOOS, field, p)
}

// HostPathOn checks a path of the host and makes it clean, with the syntax of the operating system.
func HostPathOn(system, field, p string) (string, *api.Error) {
	if system == "windows" {
		return CleanWindows(field, p)
	}
	return CleanAbs(field, p)
}

// CleanWindows checks a Windows path and returns the form that policy compares.
func CleanWindows(field, p string) (string, *api.Error) {
	const hint = `write a path with its drive, such as C:\Users\ann\project`
	switch {
	case p == "":
		return "", api.Invalid(field, "%s is empty", field).WithHint(hint)
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case !utf8.ValidString(p):
		return "", api.Invalid(field, "%s %s is not text", field, Quote(p)).WithHint(hint)
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
		return "", Denied(ruleWindowsDevice, field, "%s %s is a device, a pipe or a share under another name", field, Quote(p)).WithHint(hint)
	case strings.HasPrefix(rest, `\\`):
		return "", Denied("blocked_path:windows_share", field, "%s %s is a share of another machine", field, Quote(p)).WithHint(hint)
	default:
		return "", api.Invalid(field, "%s %s has no drive, or is relative to a current directory", field, Quote(p)).WithHint(hint)
	}
	out := "/" + strings.ToLower(rest[:2])
	for element := range strings.SplitSeq(rest[3:], `\`) {
		if element == "" {
			continue
		}
		if what := wrongElement(element); what != "" {
			return "", api.Invalid(field, "%s %s has the element %s, which %s", field, Quote(p), Quote(element), what).WithHint("write every name in full, as the directory has it")
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

// Limits of what a request puts into the sandbox.
const (
	maxPath = 4095
)

// Within reports whether p is dir or below it. Both are clean and absolute, so /a contains /a/b and
// not /ab.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

// CleanAbs checks one path of a request and returns it clean. It refuses an element "..", because
// its meaning depends on symlinks.
func CleanAbs(field, p string) (string, *api.Error) {
	const hint = "write an absolute path such as \"/srv/data\", without \"..\""
	switch {
	case p == "":
		return "", api.Invalid(field, "%s is empty", field).WithHint(hint)
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case strings.ContainsRune(p, 0):
		return "", api.Invalid(field, "%s %s holds a NUL byte", field, Quote(p)).WithHint(hint)
	case windowsPath(p):
		return "", api.Invalid(field, "%s %s is a path of Windows, and sandboxes run on Linux", field, Quote(p)).
			WithHint("write it as the machine of the daemon knows it, such as \"/srv/data\" or \"/mnt/c/data\"")
	case !strings.HasPrefix(p, "/"):
		return "", api.Invalid(field, "%s %s is relative", field, Quote(p)).WithHint(hint)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", api.Invalid(field, "%s %s has an element \"..\"", field, Quote(p)).WithHint(hint)
	}
	return path.Clean(p), nil
}

// windowsPath reports whether a path begins with a drive letter or is a UNC name.
func windowsPath(p string) bool {
	drive := len(p) >= 2 && p[1] == ':' && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z'
	return drive || strings.HasPrefix(p, `\\`)
}

// Covers reports whether a grant includes all of another one. Rules on the content of a directory
// are not compared.
func (m MountRule) Covers(o MountRule) bool {
	for _, t := range o.Tenants {
		if len(m.Tenants) > 0 && !slices.Contains(m.Tenants, t) {
			return false
		}
	}
	return Within(path.Clean(o.Root), path.Clean(m.Root)) && (m.Write || !o.Write) && (len(m.Tenants) == 0 || len(o.Tenants) > 0) &&
		len(m.Rules) == 0 && len(o.Rules) == 0
}
