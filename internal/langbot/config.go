package langbot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// boxConfig is the part of LangBot's configuration that the runtime reads. What is
// unknown is left.
type boxConfig struct {
	Backend   string          `json:"backend"`
	Limits    json.RawMessage `json:"limits"`
	Admission json.RawMessage `json:"admission"`
	Local     struct {
		HostRoot          string   `json:"host_root"`
		DefaultWorkspace  string   `json:"default_workspace"`
		SkillsRoot        string   `json:"skills_root"`
		AllowedMountRoots pathList `json:"allowed_mount_roots"`
		// DirectoryMode is the mode of new directories of workspaces. It counts where
		// the operator says it.
		DirectoryMode dirMode `json:"directory_mode"`
	} `json:"local"`
	Docker struct {
		CPULimit *flexible `json:"cpu_limit_enabled"`
	} `json:"docker"`
	Compat struct {
		// ShutdownDropsPersistent has box_shutdown take persistent sessions too.
		ShutdownDropsPersistent flexible `json:"shutdown_drops_persistent"`
		// TimeoutDropsSession has a timed-out exec take its session, with all that
		// runs in it.
		TimeoutDropsSession flexible `json:"timeout_drops_session"`
		// AllowUnenforced has sessions run without the limits that this machine cannot
		// enforce. It counts where the operator says it.
		AllowUnenforced flexible `json:"allow_unenforced_limits"`
	} `json:"compat"`
	// Network is what network: on is. It counts where the operator says it.
	Network struct {
		// Profile is the one of the operator's rules; empty is the default one.
		Profile string `json:"profile"`
		// Allow and Deny are rules of egress. Without Allow it is every public host at
		// ports 80 and 443, or with a profile what that one has.
		Allow pathList `json:"allow"`
		Deny  pathList `json:"deny"`
	} `json:"network"`
	SessionTTLSec *whole `json:"session_ttl_sec"`
	Persistent    struct {
		// SuspendAfterSec is for how long a persistent session is idle before it is suspended, in seconds. Unset is
		// the time after which other sessions are ended, and 0 is never.
		SuspendAfterSec *whole `json:"suspend_after_sec"`
	} `json:"persistent"`
}

// suspendAfter is for how long a persistent session is idle before it is suspended; 0 is never.
func (s *settings) suspendAfter() time.Duration {
	if n := s.box.Persistent.SuspendAfterSec; n != nil {
		return time.Duration(*n) * time.Second
	}
	return s.ttl
}

// flexible is a boolean that may be written as a word.
type flexible bool

// UnmarshalJSON implements json.Unmarshaler.
func (f *flexible) UnmarshalJSON(data []byte) error {
	switch strings.ToLower(strings.Trim(string(data), `"`)) {
	case "true", "1", "yes", "on":
		*f = true
	case "false", "0", "no", "off", "", "null":
		*f = false
	default:
		return failed(classValidation, "%.40s is neither true nor false", data)
	}
	return nil
}

// dirMode is the mode of a directory, in octal digits; 0 is unset.
type dirMode uint32

// UnmarshalJSON implements json.Unmarshaler.
func (m *dirMode) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	if text == "" || text == "null" {
		return nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n&0o700 != 0o700 || n&^0o2775 != 0 {
		return failed(classValidation, "local.directory_mode: %.20q is not 0700 to 2775 in octal digits, with all for the owner and no writing for everyone", text)
	}
	*m = dirMode(n)
	return nil
}

// fileMode is m as package os has it.
func (m dirMode) fileMode() fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	if m&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	return mode
}

// pathList is a list, or one text with commas.
type pathList []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *pathList) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*l = strings.Split(text, ",")
	} else if err := json.Unmarshal(data, (*[]string)(l)); err != nil {
		return failed(classValidation, "%.60s is no list of texts, and no text with commas (such as local.allowed_mount_roots)", data)
	}
	for i := range *l {
		(*l)[i] = strings.TrimSpace((*l)[i])
	}
	*l = slices.DeleteFunc(*l, func(p string) bool { return p == "" })
	return nil
}

// limits bound the runtime, for every caller.
type limits struct {
	Sessions          int   `json:"max_sessions"`
	Processes         int   `json:"max_managed_processes"`
	EndedProcesses    int   `json:"max_completed_processes"`
	Records           int   `json:"max_admission_records"`
	FileBytes         int64 `json:"max_rpc_file_bytes"`
	RetentionSec      int   `json:"-"`
	completedRetained time.Duration
}

func parseLimits(data []byte) (limits, error) {
	l := limits{}
	var given map[string]json.RawMessage
	if len(data) > 0 && json.Unmarshal(data, &given) != nil {
		return l, failed(classValidation, "limits: an object is needed")
	}
	var file, sessions, processes, ended, records, retention int64
	for _, row := range []struct {
		key          string
		to           *int64
		usual        int64
		least, hardy int64
	}{
		{"max_sessions", &sessions, 64, 0, 5000},
		{"max_managed_processes", &processes, 64, 0, 1024},
		{"max_completed_processes", &ended, 256, 0, 10_000},
		{"max_admission_records", &records, 100_000, 1, 250_000},
		{"max_rpc_file_bytes", &file, 20 << 20, 1, 100 << 20},
		{"completed_process_retention_sec", &retention, 300, 0, 86_400},
	} {
		*row.to = row.usual
		v, ok := given[row.key]
		if !ok || bytes.Equal(v, []byte("null")) {
			continue
		}
		if json.Unmarshal(v, row.to) != nil || *row.to < row.least || *row.to > row.hardy {
			return l, failed(classValidation, "limits.%s: a whole number from %d to %d is needed", row.key, row.least, row.hardy)
		}
	}
	l.Sessions, l.Processes, l.EndedProcesses, l.Records, l.FileBytes = int(sessions), int(processes), int(ended), int(records), file
	l.RetentionSec, l.completedRetained = int(retention), time.Duration(retention)*time.Second
	return l, nil
}

// settings are a configuration that was found good.
type settings struct {
	// sections are as they came, merged.
	sections map[string]json.RawMessage
	box      boxConfig
	limits   limits
	policy   admissionPolicy
	// backend is the choice, and source who made it.
	backend, source string
	// workspace is the default one; empty if none is configured.
	workspace string
	// skills is below what skills are kept; empty is core's own, if none is
	// configured.
	skills string
	// roots are the directories of the host below which all mounts lie.
	roots []string
	// unused: directories were named, and the operator granted none.
	unused bool
	// relative are the client's paths that are relative to its own working directory,
	// which is not known here.
	relative []string
	// base is where relative paths of the operator began; empty is that none was.
	base string
	ttl  time.Duration
}

// said is who says something of the configuration.
type said struct {
	// source says it now, and before did of the backend.
	source, before string
	// within are the settings that may only be narrowed; nil is that the operator speaks.
	within *settings
}

// sourceOf is who said something of the backend.
const (
	fromEnvironment = "BOX_BACKEND"
	fromOverride    = "BOX__BACKEND"
	fromInit        = "INIT"
	fromStart       = "LANGBOT_BOX_CONFIG"
	fromNobody      = "automatic"
)

// configure merges sections over those that are in force, and finds all that is wrong
// before anything is used. The overrides of the environment hold over every source.
func (o Options) configure(now map[string]json.RawMessage, given []byte, by said) (*settings, error) {
	s := &settings{sections: maps.Clone(now), ttl: sessionTTL}
	if s.sections == nil {
		s.sections = map[string]json.RawMessage{}
	}
	var more map[string]json.RawMessage
	if err := json.Unmarshal(given, &more); err != nil {
		return nil, failed(classValidation, "the configuration of box is no object")
	}
	maps.Copy(s.sections, more)
	merged, err := overlay(s.sections, o.Environ)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(merged, &s.box); err != nil {
		return nil, specError(err)
	}
	if s.limits, err = parseLimits(s.box.Limits); err != nil {
		return nil, err
	}
	s.policy = parsePolicy(s.box.Admission)
	if s.box.SessionTTLSec != nil {
		if *s.box.SessionTTLSec < 1 {
			return nil, failed(classValidation, "session_ttl_sec: it must be 1 at least")
		}
		s.ttl = time.Duration(*s.box.SessionTTLSec) * time.Second
	}
	s.chooseBackend(o, more, by.source, by.before)
	if n := s.box.Persistent.SuspendAfterSec; n != nil && *n < 0 {
		return nil, failed(classValidation, "persistent.suspend_after_sec: it must be 0 at least")
	}
	return s, s.paths(o.WorkDir, by.within)
}

// chooseBackend settles the backend and who chose it.
func (s *settings) chooseBackend(o Options, more map[string]json.RawMessage, source, before string) {
	s.backend, s.source = strings.TrimSpace(s.box.Backend), before
	if _, said := more["backend"]; said {
		s.source = source
	}
	if v, ok := lookup(o.Environ, fromOverride); ok && v != "" {
		s.source = fromOverride
	}
	if v, ok := lookup(o.Environ, fromEnvironment); ok && strings.TrimSpace(v) != "" {
		s.backend, s.source = strings.TrimSpace(v), fromEnvironment
	}
	if s.backend == "" {
		s.source = fromNobody
	}
}

func lookup(environ []string, name string) (string, bool) {
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// overlay sets the keys of BOX__* variables: BOX__LOCAL__HOST_ROOT is local.host_root.
func overlay(sections map[string]json.RawMessage, environ []string) ([]byte, error) {
	tree := map[string]any{}
	for k, v := range sections {
		var value any
		if json.Unmarshal(v, &value) != nil {
			return nil, failed(classValidation, "%.40s: it is no JSON", k)
		}
		tree[k] = value
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, "BOX__")
		if !ok || rest == "" {
			continue
		}
		keys := strings.Split(strings.ToLower(rest), "__")
		at := tree
		for _, k := range keys[:len(keys)-1] {
			next, ok := at[k].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[k] = next
			}
			at = next
		}
		var parsed any = value
		if json.Unmarshal([]byte(value), &parsed) != nil {
			parsed = value
		}
		at[keys[len(keys)-1]] = parsed
	}
	return json.Marshal(tree)
}

// paths settles the directories. A default workspace that is missing is made where it
// is allowed. Those of within are the defaults, and bound what is set.
func (s *settings) paths(workDir string, within *settings) error {
	abs := func(base, p string) string {
		if filepath.IsAbs(p) {
			return filepath.Clean(p)
		}
		return filepath.Join(base, p)
	}
	l := s.box.Local
	if l.HostRoot == "" && l.DefaultWorkspace == "" && l.SkillsRoot == "" && len(l.AllowedMountRoots) == 0 {
		if within != nil {
			s.roots, s.workspace, s.skills = within.roots, within.workspace, within.skills
		}
		return nil
	}
	if within != nil && len(within.roots) == 0 {
		s.workspace, s.skills, s.unused = within.workspace, within.skills, true
		return nil
	}
	if within != nil && s.leaveRelative(within) {
		return nil
	}
	l = s.box.Local
	if err := s.relativeTo(workDir); err != nil {
		return err
	}
	root := resolved(abs(workDir, cmp.Or(l.HostRoot, filepath.Join("data", "box"))))
	for _, r := range l.AllowedMountRoots {
		s.roots = append(s.roots, resolved(abs(workDir, r)))
	}
	switch {
	case len(s.relative) > 0: // what they are is not known, so they narrow nothing
		s.roots = within.roots
	case len(s.roots) == 0:
		s.roots = []string{root}
	}
	if within != nil {
		s.roots = narrowed(s.roots, within.roots)
	}
	if l.HostRoot != "" || l.SkillsRoot != "" {
		s.skills = resolved(abs(root, cmp.Or(l.SkillsRoot, "skills")))
		if within != nil && s.skills != within.skills && !s.allowed(s.skills) {
			return failed(classValidation, "local.skills_root: %s is not below one of the allowed_mount_roots that the operator granted", s.skills)
		}
	}
	if l.HostRoot == "" && l.DefaultWorkspace == "" {
		return nil
	}
	s.workspace = resolved(abs(root, cmp.Or(l.DefaultWorkspace, "default")))
	if !s.allowed(s.workspace) {
		return failed(classValidation, "local.default_workspace: %s is not below one of the allowed_mount_roots %s", s.workspace, strings.Join(s.roots, ", "))
	}
	switch fi, err := os.Stat(s.workspace); {
	case err == nil && !fi.IsDir():
		return failed(classValidation, "local.default_workspace: %s is a file, and a directory is needed", s.workspace)
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(s.workspace, 0o755); err != nil {
			return failed(classValidation, "local.default_workspace: %s cannot be made: %w", s.workspace, err)
		}
	case err != nil:
		return failed(classValidation, "local.default_workspace: %s cannot be used: %w", s.workspace, err)
	}
	return nil
}

// leaveRelative takes out what the client gave relative to its own working directory, and
// reports whether nothing is left. What it was narrows nothing.
func (s *settings) leaveRelative(within *settings) (done bool) {
	l := &s.box.Local
	leave := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			s.relative, *p = append(s.relative, *p), ""
		}
	}
	if leave(&l.HostRoot); l.HostRoot == "" {
		leave(&l.DefaultWorkspace)
		leave(&l.SkillsRoot)
	}
	l.AllowedMountRoots = slices.DeleteFunc(slices.Clone(l.AllowedMountRoots), func(r string) bool {
		leave(&r)
		return r == ""
	})
	if l.HostRoot == "" && l.DefaultWorkspace == "" && len(s.relative) > 0 {
		s.workspace = within.workspace
	}
	if l.HostRoot == "" && l.SkillsRoot == "" && len(s.relative) > 0 {
		s.skills = within.skills
	}
	if l.HostRoot == "" && l.DefaultWorkspace == "" && l.SkillsRoot == "" && len(l.AllowedMountRoots) == 0 {
		s.roots = within.roots
		return true
	}
	return false
}

// relativeTo notes where relative paths begin. None begins at the root of the filesystem:
// a service without a working directory would make its directories there.
func (s *settings) relativeTo(workDir string) error {
	l := s.box.Local
	for _, p := range append([]string{l.HostRoot}, l.AllowedMountRoots...) {
		if p == "" || filepath.IsAbs(p) {
			continue
		}
		if filepath.Dir(workDir) == workDir {
			return failed(classValidation, "local.host_root: %s is relative, and the working directory is %s; give an absolute path, such as BOX__LOCAL__HOST_ROOT=/srv/langbot/box", clipped(p), workDir)
		}
		s.base = workDir
	}
	return nil
}

// narrowed are the parts of the asked directories that lie in granted ones.
func narrowed(asked, granted []string) []string {
	var out []string
	for _, a := range asked {
		for _, g := range granted {
			switch {
			case belowHost(runtime.GOOS, g, a):
				out = append(out, a)
			case belowHost(runtime.GOOS, a, g):
				out = append(out, g)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *settings) allowed(real string) bool {
	return slices.ContainsFunc(s.roots, func(r string) bool { return belowHost(runtime.GOOS, r, real) })
}

// resolved follows the links of what there is of a path.
func resolved(p string) string {
	p = filepath.Clean(p)
	missing := ""
	for at := p; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, missing)
		}
		if filepath.Dir(at) == at {
			return p
		}
		missing = filepath.Join(filepath.Base(at), missing)
	}
}

// backendLocal is what LangBot's own configuration says by default.
const backendLocal = "local"

// candidates are the engines that a word for a backend means; nil is what the
// operator's rules choose.
func candidates(backend string) (names []string, known bool) {
	switch backend {
	case "", "auto":
		return nil, true
	case backendLocal:
		return []string{"docker", "nsjail"}, true
	case "docker", "nsjail", "e2b", "podman", "gvisor", "native", "oci", "kubernetes":
		return []string{backend}, true
	}
	return nil, false
}

// choice is the engine that sessions get now.
type choice struct {
	// engine is what a create asks for; empty is the operator's own choice.
	engine string
	// name is its name; it may be empty.
	name      string
	available bool
	reason    string
}

// choose finds the engine among the reports, in the order of the candidates. A
// backend that was named never falls back; local falls back to auto.
func choose(backend string, reports []api.EngineReport, auto api.EngineStatus) choice {
	names, known := candidates(backend)
	if !known {
		return choice{reason: "there is no backend " + clipped(backend)}
	}
	if names == nil {
		return choice{name: auto.Name, available: auto.Available, reason: auto.Reason}
	}
	var why []string
	for _, name := range names {
		i := slices.IndexFunc(reports, func(r api.EngineReport) bool { return r.Name == name })
		if i < 0 {
			why = append(why, "engine "+name+" is not part of this build")
			continue
		}
		if reports[i].Usable {
			return choice{engine: name, name: name, available: true}
		}
		what := "engine " + name + " is not usable here"
		for _, p := range reports[i].Problems {
			what += ": " + p.What
			break
		}
		why = append(why, what)
	}
	if backend == backendLocal && auto.Available {
		return choice{name: auto.Name, available: true}
	}
	c := choice{reason: strings.Join(why, "; ")}
	if len(names) == 1 {
		c.engine, c.name = names[0], names[0]
	}
	return c
}

func clipped(s string) string { return cutText(s, 80) }
