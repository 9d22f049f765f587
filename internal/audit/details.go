package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche"
)

// ExecDetails say what was run without what may be secret in it: of a command
// the program's base name, the number of arguments and a digest of all; of a
// script, standard input and environment their kind, length, digest or names.
// With full, which the operator must ask for, whole command lines are kept.
//
// A digest proves what was run to whoever knows the text. It does not hide a
// text that is easy to guess.
func ExecDetails(req cloche.ExecRequest, full bool) map[string]string {
	d := map[string]string{}
	script := func(kind, text string) {
		if text != "" {
			d[kind+"_bytes"] = strconv.Itoa(len(text))
			d[kind+"_sha256"] = digest([]byte(text))
		}
	}
	script("shell", req.Shell)
	script("python", req.Python)
	script("stdin", string(req.Stdin))
	if len(req.Argv) > 0 {
		d["program"] = path.Base(req.Argv[0])
		d["argc"] = strconv.Itoa(len(req.Argv))
		// NUL cannot stand in an argument, so the digest tells ["a b"] from ["a","b"].
		d["argv_sha256"] = digest([]byte(strings.Join(req.Argv, "\x00")))
		if full {
			if text, err := json.Marshal(req.Argv); err == nil {
				d["argv"] = string(text)
			}
		}
	}
	names(d, "env", req.Env)
	put(d, "cwd", req.Cwd)
	put(d, "user", req.User)
	if req.TimeoutMS != nil {
		d["timeout_ms"] = strconv.FormatInt(*req.TimeoutMS, 10)
	}
	if req.TTY {
		d["tty"] = "true"
	}
	return d
}

// SpecDetails say what sandbox was asked for, with names of environment
// variables and none of their values, and of files only how many and how large.
func SpecDetails(s cloche.SandboxSpec) map[string]string {
	d := map[string]string{}
	put(d, "name", s.Name)
	put(d, "profile", s.Profile)
	put(d, "image", s.Image)
	put(d, "engine", s.Engine)
	put(d, "network", s.Network)
	put(d, "user", s.User)
	names(d, "env", s.Env)
	names(d, "labels", s.Labels)
	if w := s.Workspace; w != nil {
		put(d, "workspace", w.Name)
		put(d, "workspace_dir", w.Dir)
		put(d, "workspace_path", w.Path)
	}
	var mounts []string
	for _, m := range s.Mounts {
		mode := ":rw"
		if m.ReadOnly {
			mode = ":ro"
		}
		mounts = append(mounts, m.Source+":"+m.Target+mode)
	}
	put(d, "mounts", strings.Join(mounts, " "))
	if len(s.Files) > 0 {
		n := 0
		for _, f := range s.Files {
			n += len(f.Content)
		}
		d["files"] = strconv.Itoa(len(s.Files))
		d["files_bytes"] = strconv.Itoa(n)
	}
	if text, err := json.Marshal(s.Limits); err == nil && s.Limits != (cloche.Limits{}) {
		d["limits"] = string(text)
	}
	return d
}

func put(d map[string]string, key, value string) {
	if value != "" {
		d[key] = value
	}
}

func names(d map[string]string, key string, m map[string]string) {
	put(d, key, strings.Join(slices.Sorted(maps.Keys(m)), " "))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
