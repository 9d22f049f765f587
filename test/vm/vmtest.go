//go:build linux

// Package vm runs programs as root of a virtual machine, for tests that need
// a kernel which this machine does not have. The processor is emulated, so it
// needs no more than a user may have, and takes its time. Only tests import it.
package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/test/vm/plan"
)

// Variables that name directories with an unpacked kernel package of Debian's: boot, and
// lib/modules or usr/lib/modules.
const (
	// EnvKernel is of the newest there is.
	EnvKernel = "CLOCHE_TEST_KERNEL"
	// EnvOlder is of one that lacks what newer ones have: Linux 6.1.
	EnvOlder = "CLOCHE_TEST_OLDER_KERNEL"
)

// Machine is a virtual machine that is started for some commands.
type Machine struct {
	// Kernel is the directory that one of the variables names; empty is EnvKernel.
	Kernel string
	// Init is the program of package guest, built for Linux without cgo.
	Init string
	// Modules are loaded, with what they depend on, before anything else.
	Modules []string
	// Files are copied onto the root filesystem: path inside to path here. The root is
	// an ext4 with project quotas.
	Files map[string]string
	// Programs are copied like Files, with the libraries that they are linked with.
	Programs map[string]string
	// DiskMB and MemoryMB are the sizes of root and memory.
	DiskMB, MemoryMB int
	// Commands are run one after the other.
	Commands []plan.Command
}

// Ended is what became of a command.
type Ended struct {
	// Console is what the command and the kernel wrote to the console.
	Console string
	// Status is the exit status; -1 is death by a signal.
	Status int
}

// Missing says why no machine can be started here with the kernel of that variable, which
// is to be of that version or newer; empty is that one can.
func Missing(env string, major, minor int) string {
	if runtime.GOARCH != "amd64" {
		return "needs another kernel: there is one for amd64 only"
	}
	dir := os.Getenv(env)
	if dir == "" {
		return "needs another kernel: " + env + " names none"
	}
	for _, program := range []string{"qemu-system-x86_64", "mkfs.ext4"} {
		if _, err := exec.LookPath(program); err != nil {
			return "needs another kernel: there is no " + program + " to run one"
		}
	}
	var gotMajor, gotMinor int
	for _, kernel := range kernels(dir) {
		_, _ = fmt.Sscanf(filepath.Base(kernel), "vmlinuz-%d.%d", &gotMajor, &gotMinor)
	}
	if gotMajor < major || gotMajor == major && gotMinor < minor {
		return fmt.Sprintf("needs Linux %d.%d or newer as the other kernel: this one is %d.%d", major, minor, gotMajor, gotMinor)
	}
	return ""
}

// kernels are those of an unpacked package.
func kernels(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	return found
}

// Run starts the machine, and returns what became of each command, and all that was
// written to the console. The machine ends with ctx. dir is an empty directory for its
// disk.
func (m Machine) Run(ctx context.Context, dir string) (ended []Ended, console string, err error) {
	found := kernels(m.Kernel)
	if len(found) != 1 {
		return nil, "", fmt.Errorf("there are %d kernels in %s", len(found), m.Kernel)
	}
	modules, err := withDependencies(modulesDir(m.Kernel), append([]string{"virtio_pci", "virtio_blk", "quota_v2"}, m.Modules...))
	if err != nil {
		return nil, "", err
	}
	disk := filepath.Join(dir, "root.img")
	if err := m.makeRoot(ctx, dir, disk); err != nil {
		return nil, "", err
	}
	for rest := m.Commands; len(rest) > 0; {
		n := 1 + slices.IndexFunc(append(slices.Clone(rest[1:]), plan.Command{Reboot: true}), func(c plan.Command) bool { return c.Reboot })
		part, said, err := m.runUntilOff(ctx, disk, found[0], filepath.Join(dir, "initrd"), modules, rest[:n])
		ended, console, rest = append(ended, part...), console+said, rest[n:]
		if err != nil {
			return ended, console, err
		}
	}
	return ended, console, nil
}

// runUntilOff starts the machine for some of the commands.
func (m Machine) runUntilOff(ctx context.Context, disk, kernel, initrd string, modules []string, commands []plan.Command) (ended []Ended, console string, err error) {
	if err := m.makeInitrd(initrd, modules, commands); err != nil {
		return nil, "", err
	}
	// A processor that is emulated by threads of the host may run what the kernel is just
	// changing of its own code, and the kernel does not survive that. What has begun no
	// command has shown nothing yet.
	for try := 1; ; try++ {
		if console, err = m.boot(ctx, kernel, disk, initrd); err != nil {
			return nil, console, err
		}
		if try == boots || strings.Contains(console, plan.Ended) || !strings.Contains(console, "Kernel panic - not syncing") {
			break
		}
	}
	rest := console
	for _, c := range commands {
		before, after, ok := strings.Cut(rest, plan.Ended)
		if !ok {
			return ended, console, fmt.Errorf("the machine ended before its command %s", c.Name)
		}
		word, after, _ := strings.Cut(after, "\n")
		status, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return ended, console, fmt.Errorf("how command %s ended: %w", c.Name, err)
		}
		ended, rest = append(ended, Ended{Console: before, Status: status}), after
	}
	return ended, console, nil
}

// boots is how often a machine is started whose kernel panics before a command has ended.
const boots = 3

// boot starts the machine once, and returns what was written to the console.
func (m Machine) boot(ctx context.Context, kernel, disk, initrd string) (console string, err error) {
	// Of what the processor has, cmpxchg16b is left out: the emulator gets its flags wrong when
	// an interrupt comes just then, and the kernel does not survive that.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16",
		"-smp", "2", "-m", strconv.Itoa(m.MemoryMB), "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+disk, "-kernel", kernel, "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("run machine: %w", err)
	}
	// The console ends each line as a terminal does.
	return strings.ReplaceAll(out.String(), "\r\n", "\n"), nil
}

// makeRoot makes the disk, with a filesystem of which the files are a part from the
// beginning.
func (m Machine) makeRoot(ctx context.Context, dir, disk string) error {
	tree := filepath.Join(dir, "root")
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "etc", "var", "mnt", "srv"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			return err
		}
	}
	files, err := m.files(ctx)
	if err != nil {
		return err
	}
	for inside, here := range files {
		if err := copyFile(filepath.Join(tree, inside), here); err != nil {
			return err
		}
	}
	f, err := os.Create(disk)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(int64(m.DiskMB)<<20), f.Close()); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota,root_owner=0:0", "-d", tree, disk).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return nil
}

// files are all that are copied.
func (m Machine) files(ctx context.Context) (map[string]string, error) {
	files := maps.Clone(m.Files)
	for inside, here := range m.Programs {
		files[inside] = here
		out, err := exec.CommandContext(ctx, "ldd", here).Output()
		if err != nil {
			return nil, fmt.Errorf("find the libraries of %s: %w", here, err)
		}
		for line := range strings.Lines(string(out)) {
			// "name => path (address)", or "path (address)" of what loads the others. It may
			// complain in between.
			f := strings.Fields(line)
			if n := len(f); n >= 2 && filepath.IsAbs(f[n-2]) && strings.HasPrefix(f[n-1], "(0x") {
				files[f[n-2]] = f[n-2]
			}
		}
	}
	return files, nil
}

func (m Machine) makeInitrd(path string, modules []string, commands []plan.Command) error {
	p := plan.Plan{Commands: commands}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	a := archive{w: f}
	a.file("init", 0o755, m.Init)
	for i, module := range modules {
		name := fmt.Sprintf("module-%02d.ko", i)
		data, err := readModule(module)
		if err != nil {
			return err
		}
		a.data(name, 0o644, data)
		p.Modules = append(p.Modules, "/"+name)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	a.data(plan.Name, 0o644, data)
	return errors.Join(a.close(), f.Close())
}
