//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine are the facts without which the numbers mean nothing.
type machine struct {
	When       time.Time         `json:"when"`
	Commit     string            `json:"commit"`
	CPU        string            `json:"cpu"`
	Cores      int               `json:"cores"`
	MemoryMiB  int64             `json:"memory_mib"`
	Kernel     string            `json:"kernel"`
	System     string            `json:"system"`
	Cgroup     string            `json:"cgroup"`
	Go         string            `json:"go"`
	GVisor     string            `json:"gvisor"`
	LoadBefore string            `json:"load_before"`
	LoadAfter  string            `json:"load_after"`
	Peers      map[string]string `json:"peers"`
}

func machineFacts(ctx context.Context, root string) machine {
	m := machine{
		When: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Kernel: kernel(),
		CPU: field("/proc/cpuinfo", "model name", ":"), Go: runtime.Version(),
		System:     strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Cgroup:     cgroupVersion(),
		LoadBefore: loadAverage(), Peers: map[string]string{},
	}
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal", ":"), " kB"), 10, 64)
	m.MemoryMiB = kib / 1024
	m.Commit = said(ctx, root, "git", "rev-parse", "--short=12", "HEAD")
	if said(ctx, root, "git", "status", "--porcelain", "--", ".", ":!bench") != "" {
		m.Commit += " and changes"
	}
	m.GVisor = said(ctx, root, "go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
	return m
}

// said is the trimmed output of a command, or "" when it failed.
func said(ctx context.Context, dir string, argv ...string) string {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// field is the value of the first line of a file that begins with key.
func field(path, key, sep string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), sep); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func cgroupVersion() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return "none"
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	return "v1"
}

func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// availableKiB is what the kernel could give to new programs.
func availableKiB() int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable", ":"), " kB"), 10, 64)
	return kib
}

// The limits are the same for every subject: those of the default profile.
const (
	limitMemory = 2 << 30
	limitCPUs   = 2
	limitPids   = 1024
	limitTmp    = 512 << 20
	limitShm    = 64 << 20
)

// word is what every program says that is waited for.
const word = "ready"

// cgroupParent is where the peers make their cgroups.
const cgroupParent = "cloche-bench"

// removeCgroups removes the peers' cgroups, which they leave behind empty.
func removeCgroups() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroupParent, "/sys/fs/cgroup/*/" + cgroupParent} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, top := range tops {
			errs = append(errs, removeGroup(top))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a cgroup after those below it. Its files are the kernel's
// and go with it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
