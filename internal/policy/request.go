package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of a request. The limits of strings follow execve: 128 KiB for each string, including the
// final NUL.
const (
	maxLabels     = 64
	maxLabelKey   = 64
	maxLabelValue = 256
	maxEnvVars    = 4096
	maxExecString = 128<<10 - 1
	maxEnvBytes   = 1 << 20
	maxUserName   = 32
	maxID         = 1<<32 - 2 // the last one means "no id" to the kernel
)

func checkLabels(d *decision) *api.Error {
	if n := len(d.spec.Labels); n > maxLabels {
		return rules.TooLarge("labels", "there are %d labels", n).WithHint("at most %d", maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(d.spec.Labels)) {
		field := "labels." + rules.Shorten(key)
		if !validLabelKey(key) {
			return api.Invalid(field, "label key %s is not valid", rules.Quote(key)).
				WithHint("use 1 to %d of letters, digits, '-', '_', '.' and '/', beginning with a letter or digit", maxLabelKey)
		}
		v := d.spec.Labels[key]
		if len(v) > maxLabelValue {
			return rules.TooLarge(field, "the value of label %s has %d bytes", key, len(v)).WithHint("at most %d", maxLabelValue)
		}
		if !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return api.Invalid(field, "the value of label %s is %s", key, rules.Quote(v)).
				WithHint("use UTF-8 text without control characters")
		}
	}
	return nil
}

func validLabelKey(s string) bool {
	if s == "" || len(s) > maxLabelKey {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case rules.IsAlphanumeric(c):
		case i > 0 && (c == '-' || c == '_' || c == '.' || c == '/'):
		default:
			return false
		}
	}
	return true
}

func checkEnv(d *decision) *api.Error { return validEnv("env", d.spec.Env) }

// validEnv reports names of variables and never repeats a value, because values are often secrets.
func validEnv(field string, env map[string]string) *api.Error {
	if n := len(env); n > maxEnvVars {
		return rules.TooLarge(field, "the environment has %d variables", n).WithHint("at most %d", maxEnvVars)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		v := env[name]
		one := field + "." + rules.Shorten(name)
		switch {
		case name == "" || len(name) > rules.MaxEnvName || strings.ContainsAny(name, "=\x00") || !utf8.ValidString(name):
			return api.Invalid(one, "environment variable name %s is not valid", rules.Quote(name)).
				WithHint("use 1 to %d bytes of UTF-8 without '=' and NUL", rules.MaxEnvName)
		case strings.ContainsRune(v, 0):
			return api.Invalid(one, "the value of environment variable %s holds a NUL byte", rules.Quote(name)).
				WithHint("no program can receive a NUL in its environment; pass binary data as a file")
		case len(name)+1+len(v) > maxExecString:
			return rules.TooLarge(one, "environment variable %s has %d bytes", rules.Quote(name), len(name)+1+len(v)).
				WithHint("the kernel takes at most %d for each, its name included; pass more as a file", maxExecString)
		}
		total += len(name) + len(v) + 2
	}
	if total > maxEnvBytes {
		return rules.TooLarge(field, "the environment has %d bytes", total).
			WithHint("at most %d in all; pass more as a file", maxEnvBytes)
	}
	return nil
}

func checkUser(d *decision) *api.Error { return validUser("user", d.spec.User) }

// CheckUser refuses text that cannot be a user of a sandbox. field is the caller's name for it.
func CheckUser(field, s string) error {
	if err := validUser(field, s); err != nil {
		return err
	}
	return nil
}

// validUser checks only the syntax. Whether the image has the user is checked inside the sandbox.
func validUser(field, s string) *api.Error {
	if s == "" || validUserName(s) {
		return nil
	}
	uid, gid, both := strings.Cut(s, ":")
	if validID(uid) && (!both || validID(gid)) {
		return nil
	}
	return api.Invalid(field, "user %s is not valid", rules.Quote(s)).
		WithHint(`write a name, a uid or uid:gid, such as "nobody", "1000" or "1000:1000"`)
}

func validUserName(s string) bool {
	if s == "" || len(s) > maxUserName || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !rules.IsAlphanumeric(c) && c != '_' && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return true
}

func validID(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && n <= maxID
}

// checkLease checks that a sandbox that must end by itself has something that ends it.
func checkLease(d *decision) *api.Error {
	if d.spec.Persistent == nil {
		d.spec.Persistent = new(true)
	}
	if d.spec.Transient && !d.held && d.spec.Limits.IdleMS == 0 {
		return api.Invalid("transient", "nothing would end this transient sandbox").
			WithHint("set limits.idle_ms and use it or send heartbeats, or hold it by a connection")
	}
	return nil
}

// checkExpiry checks what happens when the lease of a sandbox ends.
func checkExpiry(d *decision) *api.Error {
	switch s := d.spec; {
	case s.OnExpiry != "" && s.OnExpiry != api.ExpiryStop && s.OnExpiry != api.ExpirySuspend:
		return api.Invalid("on_expiry", "on_expiry %s is not known", rules.Quote(string(s.OnExpiry))).WithHint("stop or suspend")
	case s.OnExpiry != api.ExpirySuspend && !s.AutoResume:
		return nil
	case s.Transient:
		return api.Invalid("transient", "a transient sandbox is never suspended: it ends with its lease").WithHint("leave transient out")
	case s.OnExpiry == api.ExpirySuspend && s.Limits.IdleMS == 0 && s.Limits.LifetimeMS == 0:
		return api.Invalid("on_expiry", "the sandbox has neither an idle time nor a lifetime, so nothing would suspend it").
			WithHint("set limits.idle_ms or limits.lifetime_ms")
	}
	return nil
}

// AuthorizeSpec checks whether the key of the caller, if it has one, allows what a new sandbox does by itself.
func AuthorizeSpec(caller Caller, spec api.SandboxSpec) error {
	if spec.OnExpiry == api.ExpirySuspend {
		if err := AuthorizeVerb(caller, VerbSuspend); err != nil {
			return err
		}
	}
	if spec.AutoResume {
		return AuthorizeVerb(caller, VerbResume)
	}
	return nil
}

// checkSuspends refuses what the engine cannot do.
func checkSuspends(d *decision) *api.Error {
	if d.engine.Suspends {
		d.profile.Suspend(&d.spec)
	}
	if d.spec.OnExpiry != api.ExpirySuspend && !d.spec.AutoResume || d.engine.Suspends {
		return nil
	}
	e := api.Errorf(api.CodeUnsupported, "engine %s cannot save the memory of a sandbox", d.engine.Name).
		WithHint("choose an engine that can, such as gvisor; or leave it out: a stop keeps the root and the workspace, and a start brings them back")
	if e.Field = "auto_resume"; !d.spec.AutoResume {
		e.Field = "on_expiry"
	}
	return e
}
