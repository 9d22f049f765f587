package command

import (
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Absolute makes a path of the caller's machine absolute, or says why such a
// path means nothing to the daemon.
type Absolute func(field, path string) (string, error)

// ParseMount reads SRC:DST[:ro|rw].
func ParseMount(s string, abs Absolute) (api.Mount, error) {
	const field = "mounts"
	bad := func(why string) error {
		return api.Invalid(field, "--mount %q %s", terminal.Clip(s), why).
			WithHint("write --mount SOURCE:TARGET or --mount SOURCE:TARGET:ro, for example --mount ./data:/data:ro")
	}
	if strings.HasPrefix(s, "type=") || strings.Contains(s, ",source=") || strings.Contains(s, ",src=") {
		return api.Mount{}, bad("is in Docker's long form")
	}
	parts := splitMount(s)
	m := api.Mount{}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.ReadOnly = true
		case "rw":
		default:
			return m, bad("ends with something other than ro or rw")
		}
		parts = parts[:2]
	}
	switch {
	case len(parts) > 2:
		return m, bad("has too many colons; a path with a colon in it cannot be mounted")
	case len(parts) < 2:
		return m, bad("has no target")
	case parts[0] == "":
		return m, bad("has no source")
	case !path.IsAbs(parts[1]):
		return m, bad("has a target that is not an absolute path")
	}
	src := parts[0]
	if !WindowsPath(src) { // which says itself where it is
		var err error
		if src, err = abs(field, src); err != nil {
			return m, err
		}
	}
	m.Source, m.Target = src, parts[1]
	return m, CheckText(field, m.Source, m.Target)
}

// ParseWorkspace reads NAME|DIR[:PATH][:ro]. What contains a slash or begins with
// a dot is a directory; nothing before the colon is a private workspace at PATH.
func ParseWorkspace(s string, abs Absolute) (*api.Workspace, error) {
	const field = "workspace"
	hint := "write --workspace NAME, --workspace ./DIR, or either with :/PATH, :ro or both, for example --workspace ./job:/srv/job:ro"
	parts := strings.Split(s, ":")
	w := &api.Workspace{}
	if last := parts[len(parts)-1]; len(parts) > 1 && (last == "ro" || last == "rw") {
		w.ReadOnly, parts = last == "ro", parts[:len(parts)-1]
	}
	first := parts[0]
	switch {
	case s == "":
		return nil, api.Invalid(field, "--workspace is empty").WithHint("%s", hint)
	case len(parts) > 2:
		return nil, api.Invalid(field, "--workspace %q has too many colons", terminal.Clip(s)).WithHint("%s", hint)
	case len(parts) == 2 && !path.IsAbs(parts[1]):
		return nil, api.Invalid("workspace.path", "--workspace %q: the path inside, %q, is not absolute", terminal.Clip(s), terminal.Clip(parts[1])).WithHint("%s", hint)
	case len(parts) == 2:
		w.Path = parts[1]
	}
	switch {
	case first == "":
	case strings.Contains(first, "/") || strings.HasPrefix(first, ".") || strings.Contains(first, `\`):
		dir, err := abs("workspace.dir", first)
		if err != nil {
			return nil, err
		}
		w.Dir = dir
	case api.ValidName(first):
		w.Name = first
	default:
		return nil, api.Invalid("workspace.name", "--workspace %q is not a name", terminal.Clip(first)).
			WithHint("a name is 1 to %d of a-z, 0-9, '-', '_' and '.'; a directory is written with a slash, such as ./%s", api.MaxNameLen, terminal.Clip(first))
	}
	return w, CheckText(field, w.Dir, w.Path)
}

// SplitFile reads SRC:DST of --file. DST is what follows the last colon, since
// it is absolute and SRC is the one more likely to have colons in it.
func SplitFile(s string) (src, dst string, err error) {
	bad := func(why string) (string, string, error) {
		return "", "", api.Invalid("files", "--file %q %s", terminal.Clip(s), why).
			WithHint("write --file SOURCE:TARGET, for example --file ./main.py:/workspace/main.py")
	}
	i := strings.LastIndexByte(s, ':')
	switch {
	case i < 0:
		return bad("has no target")
	case i == 0:
		return bad("has no source")
	case !path.IsAbs(s[i+1:]):
		return bad("has a target that is not an absolute path")
	}
	return s[:i], s[i+1:], CheckText("files", s[i+1:])
}

// ParseEnv reads K=V, or K to take the value from this process's environment.
func ParseEnv(assignments []string, lookup func(string) (string, bool)) (map[string]string, error) {
	if len(assignments) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(assignments))
	for _, a := range assignments {
		k, v, given := strings.Cut(a, "=")
		if k == "" {
			return nil, api.Invalid("env", "--env %q has no name", terminal.Clip(a)).WithHint("write --env NAME=VALUE, or --env NAME to use its value from this environment")
		}
		if !given {
			if v, given = lookup(k); !given {
				return nil, api.Invalid("env", "--env %s: there is no such variable here to pass on", terminal.Clip(k)).WithHint("write --env %s=VALUE", terminal.Clip(k))
			}
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, api.Invalid("env", "--env %q: the name or the value is not UTF-8", terminal.Clip(k)).WithHint("send other bytes as a file, with --file")
		}
		env[k] = v
	}
	return env, nil
}

// ParseSecret reads NAME[=ENV][:MODE].
func ParseSecret(text string) (api.SecretUse, error) {
	rest, mode, moded := strings.Cut(text, ":")
	name, env, named := strings.Cut(rest, "=")
	use := api.SecretUse{Name: name, Env: env, Mode: api.SecretMode(mode)}
	if name == "" || named && env == "" || moded && use.Mode != api.SecretPlaceholder && use.Mode != api.SecretEnv {
		return use, api.Invalid("secrets", "--secret %q is not NAME[=ENV][:MODE]", terminal.Clip(text)).
			WithHint("name a secret that \"cloche secret ls\" lists, the variable for it and %s or %s: openai=OPENAI_API_KEY:%s", api.SecretPlaceholder, api.SecretEnv, api.SecretPlaceholder)
	}
	return use, CheckText("secrets", text)
}

// ParseLabels reads K=V.
func ParseLabels(flag string, assignments []string) (map[string]string, error) {
	if len(assignments) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(assignments))
	for _, a := range assignments {
		k, v, ok := strings.Cut(a, "=")
		if !ok || k == "" {
			return nil, api.Invalid("labels", "%s %q is not KEY=VALUE", flag, terminal.Clip(a)).WithHint("write %s team=research", flag)
		}
		if err := CheckText("labels", k, v); err != nil {
			return nil, err
		}
		labels[k] = v
	}
	return labels, nil
}

// CheckText refuses what JSON would silently change: strings that are not UTF-8.
func CheckText(field string, values ...string) error {
	for _, v := range values {
		if !utf8.ValidString(v) {
			return api.Invalid(field, "%s: %q is not UTF-8", field, terminal.Clip(v)).WithHint("use a name that is valid UTF-8; cloche cp takes paths of any bytes")
		}
	}
	return nil
}

// CheckArgv refuses a command line that would not arrive as it was typed.
func CheckArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return api.Invalid("argv", "no command was given").WithHint("write it after --, for example: -- python3 -c 'print(6*7)'")
	}
	for i, a := range argv {
		if !utf8.ValidString(a) {
			return api.Invalid("argv", "argument %d of the command, %q, is not UTF-8", i, terminal.Clip(a)).
				WithHint("name the file inside the sandbox by a pattern, such as sh -c 'cat ./*', or send the bytes on standard input")
		}
	}
	return nil
}

// Location is one end of a copy.
type Location struct {
	// sandbox is empty for a path of this machine.
	Sandbox string
	Path    string
}

// ParseLocation reads SANDBOX:PATH or a local path. A local path with a colon
// is written with a slash before it, as in ./a:b.
func ParseLocation(s string) Location {
	if name, p, ok := strings.Cut(s, ":"); ok && api.ValidName(name) {
		return Location{Sandbox: name, Path: p}
	}
	return Location{Path: s}
}

// absoluteHere makes a path absolute against the working directory.
func absoluteHere(field, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", api.Invalid(field, "%s: make %s absolute: %w", field, terminal.Printable(path), err)
	}
	return abs, nil
}

// absoluteElsewhere takes absolute paths only: the daemon is on another machine,
// where this one's working directory means nothing.
func absoluteElsewhere(field, path string) (string, error) {
	if len(path) > 0 && path[0] == '/' {
		return path, nil
	}
	return "", api.Invalid(field, "%s: %q is relative, and the daemon is on another machine", field, terminal.Clip(path)).
		WithHint(`give an absolute path of the daemon's machine, or copy files in with --file or "cloche cp"`)
}

// splitMount splits SRC:DST[:MODE] at its colons, except for the one after the drive of a Windows
// path. The daemon accepts or refuses such a path.
func splitMount(s string) []string {
	parts := strings.Split(s, ":")
	drive := len(parts) > 2 && len(parts[0]) == 1 && strings.ContainsAny(strings.ToLower(parts[0]), "abcdefghijklmnopqrstuvwxyz")
	if drive && (strings.HasPrefix(parts[1], `\`) || strings.HasPrefix(parts[1], "/") && strings.HasPrefix(parts[2], "/")) {
		return append([]string{parts[0] + ":" + parts[1]}, parts[2:]...)
	}
	return parts
}

// WindowsPath is true for what begins with a drive or is a UNC name.
func WindowsPath(p string) bool {
	return len(p) > 2 && p[1] == ':' && (p[2] == '\\' || p[2] == '/') || strings.HasPrefix(p, `\\`)
}
