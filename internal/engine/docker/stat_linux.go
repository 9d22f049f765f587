package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// groups are the cgroups of a container on this machine.
type groups struct {
	// memory and cpu are of version 1; unified is of version 2.
	memory, cpu, unified string
}

// ownGroups calls fn with the controller and the path in its hierarchy of each cgroup that a
// container's first process is in. A cgroup of version 2 has no controller. The cgroups must be
// named after the container, so that a process with that number here is not taken for one of
// another machine.
func ownGroups(pid int, id string, fn func(controller, path string)) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !strings.Contains(f[2], id) {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			fn(name, f[2])
		}
	}
	return nil
}

// findGroups finds the cgroups of a container by its first process.
func findGroups(pid int, id string) (groups, bool) {
	var g groups
	err := ownGroups(pid, id, func(controller, path string) {
		switch controller {
		case "memory":
			g.memory = filepath.Join(cgroupRoot, "memory", path)
		case "cpuacct":
			g.cpu = filepath.Join(cgroupRoot, "cpuacct", path)
		case "":
			g.unified = filepath.Join(cgroupRoot, path)
		}
	})
	if err != nil {
		return groups{}, false
	}
	_, err = g.stat()
	return g, err == nil
}

// stat reads what is used.
func (g groups) stat() (engine.Stat, error) {
	var s engine.Stat
	if g.memory != "" && g.cpu != "" {
		memory, err := number(filepath.Join(g.memory, "memory.usage_in_bytes"))
		cpu, cerr := number(filepath.Join(g.cpu, "cpuacct.usage"))
		kills, kerr := counter(filepath.Join(g.memory, "memory.oom_control"), "oom_kill")
		s.MemoryBytes, s.CPU, s.OOMKills = memory, time.Duration(cpu), kills
		return s, errors.Join(err, cerr, kerr)
	}
	if g.unified == "" {
		return s, errors.New("the container has no cgroup here")
	}
	memory, err := number(filepath.Join(g.unified, "memory.current"))
	cpu, cerr := counter(filepath.Join(g.unified, "cpu.stat"), "usage_usec")
	kills, kerr := counter(filepath.Join(g.unified, "memory.events"), "oom_kill")
	s.MemoryBytes, s.CPU, s.OOMKills = memory, time.Duration(cpu)*time.Microsecond, kills
	return s, errors.Join(err, cerr, kerr)
}

func number(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// counter reads one line of a file of names and numbers.
func counter(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return strconv.ParseInt(text, 10, 64)
		}
	}
	return 0, errors.New("no line " + name)
}

var _ engine.FileHolder = (*instance)(nil)

// FileHolders implements engine.FileHolder. Of a container on another machine there are
// none here.
func (i *instance) FileHolders(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	inspected, err := i.d.ContainerInspect(ctx, i.rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return nil, i.e.classify(ctx, "look for the processes of sandbox "+i.rec.ID, err)
	}
	state := inspected.Container.State
	if state == nil || state.Pid == 0 {
		return nil, i.lost("look for the processes of sandbox "+i.rec.ID, nil)
	}
	if _, ours := findGroups(state.Pid, i.rec.Container); !ours {
		return nil, nil
	}
	return pidfd.Tree(state.Pid), nil
}
