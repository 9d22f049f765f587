package langbot

import (
	"bytes"
	"encoding/json"
	"math"
	"path"
	"strconv"
	"strings"
)

// whole is a whole number, also as a string or a number without fraction.
type whole int64

// UnmarshalJSON implements json.Unmarshaler.
func (w *whole) UnmarshalJSON(data []byte) error {
	text := strings.TrimSpace(strings.Trim(string(data), `"`))
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*w = whole(n)
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 || bytes.HasPrefix(data, []byte(`"`)) {
		return failed(classValidation, "%.40q is no whole number", text)
	}
	*w = whole(f)
	return nil
}

// boxSpec is what a session is asked to be, with every default filled in.
type boxSpec struct {
	SessionID    string            `json:"session_id"`
	Cmd          string            `json:"cmd"`
	Workdir      string            `json:"workdir"`
	TimeoutSec   whole             `json:"timeout_sec"`
	Network      string            `json:"network"`
	Env          map[string]string `json:"env"`
	Image        string            `json:"image"`
	HostPath     *string           `json:"host_path"`
	HostPathMode string            `json:"host_path_mode"`
	MountPath    string            `json:"mount_path"`
	ExtraMounts  []mountSpec       `json:"extra_mounts"`
	SkillName    *string           `json:"skill_name"`
	Persistent   bool              `json:"persistent"`
	CPUs         float64           `json:"cpus"`
	MemoryMB     whole             `json:"memory_mb"`
	PidsLimit    whole             `json:"pids_limit"`
	ReadOnlyRoot bool              `json:"read_only_rootfs"`
	QuotaMB      whole             `json:"workspace_quota_mb"`
}

// defaultImage is the reference's. That image is not available here: it stands for
// the operator's own default.
const defaultImage = "rockchin/langbot-sandbox:latest"

// The limits of a spec that names none.
const (
	usualCPUs     = 1
	usualMemoryMB = 512
	usualPids     = 128
)

const usualMountPath = "/workspace"

// parseSpec reads a BoxSpec and checks all of its rules.
func parseSpec(data []byte) (boxSpec, error) {
	s := boxSpec{
		TimeoutSec: 30, Network: "off", Image: defaultImage, HostPathMode: "rw", MountPath: usualMountPath,
		CPUs: usualCPUs, MemoryMB: usualMemoryMB, PidsLimit: usualPids, ReadOnlyRoot: true,
	}
	var given struct {
		MountPath *string `json:"mount_path"`
		Workdir   *string `json:"workdir"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, specError(err)
	}
	if err := json.Unmarshal(data, &given); err != nil {
		return s, specError(err)
	}
	s.SessionID, s.Cmd, s.Workdir = strings.TrimSpace(s.SessionID), strings.TrimSpace(s.Cmd), strings.TrimSpace(s.Workdir)
	if s.Workdir == "" && (given.MountPath != nil || given.Workdir == nil) {
		s.Workdir = s.MountPath
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	return s, s.check()
}

// specError names the field of a value that does not fit.
func specError(err error) error {
	if wrong, ok := err.(*json.UnmarshalTypeError); ok { //nolint:errorlint // json.Unmarshal returns it as it is
		return failed(classValidation, "%s: %s is not what belongs there", wrong.Field, wrong.Value)
	}
	if f, ok := err.(*failure); ok { //nolint:errorlint // whole's own
		return f
	}
	return failed(classValidation, "the spec cannot be read")
}

func (s *boxSpec) check() error {
	wrong := func(field, format string, args ...any) error {
		f := failed(classValidation, format, args...)
		f.text = field + ": " + f.text
		return f
	}
	switch {
	case s.SessionID == "":
		return wrong("session_id", "it is empty")
	case !strings.HasPrefix(s.Workdir, "/"):
		return wrong("workdir", "%.80q is no absolute path", s.Workdir)
	case !strings.HasPrefix(s.MountPath, "/"):
		return wrong("mount_path", "%.80q is no absolute path", s.MountPath)
	case s.TimeoutSec <= 0:
		return wrong("timeout_sec", "it is %d, and must be more than 0", s.TimeoutSec)
	case s.Network != "off" && s.Network != "on":
		return wrong("network", "%.40q is neither off nor on", s.Network)
	case !isMode(s.HostPathMode):
		return wrong("host_path_mode", "%.40q is not one of none, ro and rw", s.HostPathMode)
	case !(s.CPUs > 0):
		return wrong("cpus", "it must be more than 0")
	case s.MemoryMB < 32:
		return wrong("memory_mb", "it is %d, and must be 32 at least", s.MemoryMB)
	case s.PidsLimit < 1:
		return wrong("pids_limit", "it is %d, and must be 1 at least", s.PidsLimit)
	case s.QuotaMB < 0:
		return wrong("workspace_quota_mb", "it is %d, and must not be negative", s.QuotaMB)
	}
	if s.HostPath != nil {
		if !isAbsolute(*s.HostPath) {
			return wrong("host_path", "%.80q is no absolute path", *s.HostPath)
		}
		if s.HostPathMode != "none" && !below(s.MountPath, s.Workdir) {
			return wrong("workdir", "%.80q is not below mount_path %.80q", s.Workdir, s.MountPath)
		}
	}
	for i := range s.ExtraMounts {
		if err := s.ExtraMounts[i].check(i); err != nil {
			return err
		}
	}
	if s.SkillName != nil {
		name := strings.TrimSpace(*s.SkillName)
		if len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return !isWord(r) }) {
			return wrong("skill_name", "%.80q is no name of a skill", name)
		}
		if s.SkillName = &name; name == "" {
			s.SkillName = nil
		}
	}
	return nil
}

func isMode(m string) bool { return m == "none" || m == "ro" || m == "rw" }

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

// isAbsolute takes paths of Windows too, which are then refused as no directory here.
func isAbsolute(p string) bool {
	if strings.HasPrefix(p, "/") {
		return true
	}
	drive := len(p) > 2 && p[1] == ':' && (p[2] == '\\' || p[2] == '/') && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z'
	return drive || strings.HasPrefix(p, `\\`)
}

// below reports whether p is dir or lies in it.
func below(dir, p string) bool {
	dir, p = path.Clean(dir), path.Clean(p)
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// belowHost is below for directories of a host of a system: names of Windows have drives,
// either slash, and no case.
func belowHost(system, dir, p string) bool {
	if system == "windows" {
		dir, p = windowsName(dir), windowsName(p)
	}
	return below(dir, p)
}

// windowsName is the one of a directory's names that is compared.
func windowsName(p string) string {
	p = strings.ToLower(strings.ReplaceAll(p, `\`, "/"))
	return path.Clean(strings.TrimPrefix(p, "//?/"))
}

// ofHost reports whether p is an absolute path of a host of a system.
func ofHost(system, p string) bool {
	if system == "windows" {
		return isAbsolute(p) && !strings.HasPrefix(p, "/")
	}
	return strings.HasPrefix(p, "/")
}

// conflict is the first field, in the order of the wire, in which a session that is
// there is not what is asked for, and what it has.
func (s *boxSpec) conflict(asked *boxSpec) (field, has string) {
	hostPath := func(p *string) string {
		if p == nil {
			return "None"
		}
		return *p
	}
	for _, f := range []struct {
		name     string
		has, ask string
	}{
		{"network", s.Network, asked.Network},
		{"image", s.Image, asked.Image},
		{"host_path", hostPath(s.HostPath), hostPath(asked.HostPath)},
		{"host_path_mode", s.HostPathMode, asked.HostPathMode},
		{"mount_path", s.MountPath, asked.MountPath},
		{"persistent", truth(s.Persistent), truth(asked.Persistent)},
		{"cpus", strconv.FormatFloat(s.CPUs, 'g', -1, 64), strconv.FormatFloat(asked.CPUs, 'g', -1, 64)},
		{"memory_mb", strconv.FormatInt(int64(s.MemoryMB), 10), strconv.FormatInt(int64(asked.MemoryMB), 10)},
		{"pids_limit", strconv.FormatInt(int64(s.PidsLimit), 10), strconv.FormatInt(int64(asked.PidsLimit), 10)},
		{"read_only_rootfs", truth(s.ReadOnlyRoot), truth(asked.ReadOnlyRoot)},
		{"workspace_quota_mb", strconv.FormatInt(int64(s.QuotaMB), 10), strconv.FormatInt(int64(asked.QuotaMB), 10)},
	} {
		if f.has != f.ask {
			return f.name, f.has
		}
	}
	return "", ""
}

// truth is a boolean as the client's language writes it.
func truth(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// processSpec is a managed process as it is asked for.
type processSpec struct {
	ProcessID string            `json:"process_id"`
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"`
	Cwd       string            `json:"cwd"`
	MemoryMB  whole             `json:"memory_mb"`
}

func parseProcessSpec(data []byte) (processSpec, error) {
	p := processSpec{ProcessID: usualProcess, Cwd: usualMountPath}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, specError(err)
	}
	p.Command = strings.TrimSpace(p.Command)
	p.ProcessID = strings.TrimSpace(p.ProcessID)
	if p.ProcessID == "" {
		p.ProcessID = usualProcess
	}
	switch {
	case p.Command == "":
		return p, failed(classValidation, "command: it is empty")
	case !strings.HasPrefix(p.Cwd, "/"):
		return p, failed(classValidation, "cwd: %.80q is no absolute path", p.Cwd)
	case len(p.ProcessID) > maxProcessID || strings.ContainsRune(p.ProcessID, '/'):
		return p, failed(classValidation, "process_id: it has at most %d characters and no slash", maxProcessID)
	case p.MemoryMB < 0:
		return p, failed(classValidation, "memory_mb: it is negative")
	}
	if p.Args == nil {
		p.Args = []string{}
	}
	return p, nil
}

const (
	usualProcess = "default"
	maxProcessID = 256
)
