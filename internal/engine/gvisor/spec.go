//go:build linux

package gvisor

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cloche-dev/cloche/internal/engine"
)

// spec describes the plan to the sentry and the gofer. The order of the mounts
// that carry a descriptor (the agent's image, then the plan's) is the order in
// which the descriptors are handed over.
func spec(p engine.Plan) *specs.Spec {
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: p.Hostname,
		// The path is never used: the root is an image, known by its descriptor.
		Root: &specs.Root{Path: "/", Readonly: p.Root.ReadOnly},
		Process: &specs.Process{
			User:         specs.User{UID: p.Agent.UID, GID: p.Agent.UID},
			Args:         p.Agent.Argv,
			Cwd:          "/",
			Capabilities: allCapabilities(),
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "ro"}},
			{Destination: "/dev", Type: "dev", Source: "dev"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec"}},
			{Destination: p.Agent.Target, Type: "erofs", Source: p.Agent.Image, Options: []string{"ro", "nosuid"}},
		},
		Annotations: map[string]string{},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}
	for _, t := range p.Tmpfs {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: t.Target, Type: "tmpfs", Source: "tmpfs",
			Options: []string{
				"nosuid", "size=" + strconv.FormatInt(t.SizeBytes, 10),
				"mode=" + strconv.FormatUint(uint64(t.Mode), 8),
			},
		})
	}
	exclusive := exclusiveSources(p.Mounts)
	hinted := map[string]bool{}
	for n, m := range p.Mounts {
		if exclusive[m.Source] && !hinted[m.Source] {
			hinted[m.Source] = true
			name := "dev.gvisor.spec.mount.m" + strconv.Itoa(n)
			s.Annotations[name+".source"] = m.Source
			s.Annotations[name+".type"] = "bind"
			s.Annotations[name+".share"] = "container"
		}
		opts := []string{"rbind", "nosuid", "nodev"}
		if m.ReadOnly {
			opts = append(opts, "ro")
		} else {
			opts = append(opts, "rw")
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: opts})
	}
	return s
}

// exclusiveSources are the sources whose names are looked up once. What is static takes
// half the time where many files are looked at. What is held must never be looked up
// anew: gVisor takes away the mounts on a name that it finds changed. It knows a mount by
// its source, so the mounts of one source are all held or none is, and only a source of
// one mount is static.
func exclusiveSources(mounts []engine.Mount) map[string]bool {
	sources, exclusive := map[string]int{}, map[string]bool{}
	for _, m := range mounts {
		sources[m.Source]++
	}
	for _, m := range mounts {
		if m.Pinned || m.Static && m.ReadOnly && sources[m.Source] == 1 {
			exclusive[m.Source] = true
		}
	}
	return exclusive
}

// mountConfs says for the root and for each mount that carries a descriptor
// what is below and above.
func mountConfs(p engine.Plan) string {
	root := mountConf(lowerErofs, upperUnnamed, p.Limits.DiskBytes)
	if p.Root.ReadOnly {
		// Takes the mount points that the image lacks, then becomes read-only.
		root = mountConf(lowerErofs, upperMemory, 0)
	}
	confs := []string{root, mountConf(lowerErofs, upperNone, 0)}
	for range p.Mounts {
		confs = append(confs, mountConf(lowerGofer, upperNone, 0))
	}
	return strings.Join(confs, ",")
}

func specJSON(p engine.Plan) ([]byte, error) {
	b, err := json.Marshal(spec(p))
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	return b, nil
}

// baseFlags are the flags of gVisor that both roles get.
func baseFlags(dir string) []string {
	return []string{
		"--root=" + dir,
		"--platform=systrap",
		// Not "none": that would refuse port-forward. There is a loopback, and the link
		// of a plan that has one.
		"--network=sandbox",
		"--ignore-cgroups=true",
		"--host-settings=ignore",
		// The sentry opens nothing of the host itself, so it needs no capability.
		"--directfs=false",
		"--overlay2=none",
		"--in-sandbox-cgroup=v2",
		// When the agent ends, idle control connections hold up nothing.
		"--control-rpc-stop-timeout=0",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		"--sidecar-release-enforcement-policy=NEVER",
	}
}
