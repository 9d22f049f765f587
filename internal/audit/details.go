package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// The ways to record a command line.
const (
	// ArgvRedacted is every argument without what looks like a credential, up to
	// 4 KiB, and a digest of all.
	ArgvRedacted = "redacted"
	// ArgvHash is the program's name, the number of arguments and the digest.
	ArgvHash = "hash"
	// ArgvFull is every argument as it is, up to 4 KiB, without known secrets.
	ArgvFull = "full"
)

// detailArgv is the key of a command line.
const detailArgv = "argv"

// Disclosure says how much of a request is told.
type Disclosure struct {
	// Argv is one of the ways; empty is ArgvRedacted.
	Argv string
	// Redactor knows secret values; nil knows none.
	Redactor Redactor
}

// argv is a command line as a JSON list. What is secret is taken out before the
// text is cut, so that no part of it is left over.
func (o Disclosure) argv(argv []string) (text string, cut int) {
	args := slices.Clone(argv)
	for i, a := range args {
		if o.Redactor != nil {
			a = o.Redactor.Redact(a)
		}
		if o.Argv != ArgvFull {
			a = credentials(a)
		}
		args[i] = a
	}
	if o.Argv != ArgvFull {
		args = afterFlags(args)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)                 // people read it, and no browser
	if err := enc.Encode(args); err != nil { // strings always encode
		return "", 0
	}
	raw := strings.TrimSuffix(b.String(), "\n")
	if len(raw) > maxArgv {
		cut = len(raw)
	}
	return raw, cut
}

// afterFlags takes out an argument that stands alone after Bearer or Basic.
func afterFlags(args []string) []string {
	for i, a := range args[:max(len(args)-1, 0)] {
		word := a[strings.LastIndexAny(a, " :=")+1:]
		if (strings.EqualFold(word, "bearer") || strings.EqualFold(word, "basic")) && len(args[i+1]) >= minToken {
			args[i+1] = Redacted
		}
	}
	return args
}

// ExecDetails say what was run without what may be secret in it: of a command
// its arguments as the disclosure has them and a digest of all; of a script,
// standard input and environment their length and digest, or names.
//
// A digest proves what was run to a reader who knows the text. It does not hide a
// text that is easy to guess.
func ExecDetails(req api.ExecRequest, show Disclosure) map[string]string {
	d := map[string]string{}
	naming(d, req.Naming)
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
		if show.Argv != ArgvHash {
			text, cut := show.argv(req.Argv)
			put(d, detailArgv, text)
			if cut > 0 {
				d["argv_bytes"] = strconv.Itoa(cut)
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
func SpecDetails(s api.SandboxSpec) map[string]string {
	d := map[string]string{}
	put(d, "name", s.Name)
	put(d, "idempotency_key", s.IdempotencyKey)
	naming(d, s.Naming)
	put(d, "profile", s.Profile)
	put(d, "image", s.Image)
	put(d, "snapshot", s.Snapshot)
	put(d, "engine", s.Engine)
	put(d, "network", s.Network)
	if e := s.Egress; e != nil {
		put(d, "egress_allow", strings.Join(e.Allow, " "))
		put(d, "egress_deny", strings.Join(e.Deny, " "))
		if e.Ask {
			d["egress_ask"] = "true"
		}
		if len(e.Requests) > 0 {
			d["egress_requests"] = strconv.Itoa(len(e.Requests))
		}
	}
	put(d, "on_expiry", string(s.OnExpiry))
	if s.AutoResume {
		d["auto_resume"] = "true"
	}
	put(d, "user", s.User)
	if s.Sudo {
		d["sudo"] = "true"
	}
	names(d, "env", s.Env)
	names(d, "labels", s.Labels)
	var secrets []string
	for _, u := range s.Secrets {
		secrets = append(secrets, u.Name)
	}
	put(d, "secrets", strings.Join(secrets, " "))
	if w := s.Workspace; w != nil {
		put(d, "workspace", w.Name)
		put(d, "workspace_dir", w.Dir)
		put(d, "workspace_path", w.Path)
		put(d, "workspace_rules", pathRules(w.Rules))
	}
	var mounts, rules []string
	for _, m := range s.Mounts {
		mode := ":rw"
		if m.ReadOnly {
			mode = ":ro"
		}
		mounts = append(mounts, m.Source+":"+m.Target+mode)
		if r := pathRules(m.Rules); r != "" {
			rules = append(rules, m.Target+"("+r+")")
		}
	}
	put(d, "mounts", strings.Join(mounts, " "))
	var skills []string
	for _, u := range s.Skills {
		skills = append(skills, u.Name+":"+cmp.Or(string(u.Access), "ro"))
	}
	put(d, "skills", strings.Join(skills, " "))
	put(d, "mount_rules", strings.Join(rules, " "))
	var endpoints []string
	for _, e := range s.Endpoints {
		endpoints = append(endpoints, e.Name+"="+e.Target+"@"+e.Listen)
	}
	put(d, "endpoints", strings.Join(endpoints, " "))
	if len(s.Files) > 0 {
		n := 0
		for _, f := range s.Files {
			n += len(f.Content)
		}
		d["files"] = strconv.Itoa(len(s.Files))
		d["files_bytes"] = strconv.Itoa(n)
	}
	if text, err := json.Marshal(s.Limits); err == nil && s.Limits != (api.Limits{}) {
		d["limits"] = string(text)
	}
	return d
}

// pathRules are rules on paths, in their order.
func pathRules(rules []api.PathRule) string {
	var all []string
	for _, r := range rules {
		all = append(all, r.Path+":"+string(r.Access))
	}
	return strings.Join(all, " ")
}

// EndpointDetails say what endpoint was asked for, with names of variables, headers
// and secrets and none of their values.
func EndpointDetails(e api.Endpoint) map[string]string {
	d := map[string]string{}
	put(d, "endpoint", e.Name)
	put(d, "target", e.Target)
	put(d, "listen", e.Listen)
	put(d, "record", e.Record)
	put(d, "presets", strings.Join(e.Presets, " "))
	names(d, "env", e.Env)
	if h := e.HTTP; h != nil {
		names(d, "set_headers", h.SetHeaders)
		names(d, "secret_headers", h.SecretHeaders)
		put(d, "body_filter", h.BodyFilter)
		if h.Once {
			put(d, "once", "true")
		}
	}
	if a := e.Audit; a != nil {
		put(d, "audit", a.Capture)
	}
	return d
}

// naming says for whom a request was, with the names of variables and none of
// their values, which may be a user's text.
func naming(d map[string]string, n api.Naming) {
	put(d, "name_template", n.NameTemplate)
	if id := n.Identity; id != nil {
		put(d, "launcher_type", id.LauncherType)
		put(d, "launcher_id", id.LauncherID)
		put(d, "sender_id", id.SenderID)
		put(d, "query_id", id.QueryID)
		names(d, "variables", id.Variables)
	}
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
