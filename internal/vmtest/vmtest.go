//go:build linux

// Package vmtest runs programs as root of a virtual machine, for tests that need
// a kernel which this machine does not have. The processor is emulated, so it
// needs no more than a user may have, and takes its time. Only tests import it.
package vmtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/internal/vmtest/plan"
)

// EnvKernel names a directory with an unpacked kernel package of Debian's: boot
// and lib/modules.
const EnvKernel = "CLOCHE_TEST_KERNEL"

// Machine is a virtual machine that is started for one command.
type Machine struct {
	// Kernel is the directory that EnvKernel names.
	Kernel string
	// Init is the program of package guest, built for Linux without cgo.
	Init string
	// Modules are loaded, with what they depend on, before anything else.
	Modules []string
	// Files are copied onto the root filesystem: path inside to path here. The root is
	// an ext4 with project quotas.
	Files map[string]string
	// DiskMB and MemoryMB are the sizes of root and memory.
	DiskMB, MemoryMB int
	// Command is run with Env, in the directory /tmp.
	Command []string
	Env     []string
}

// Missing says why no machine can be started here; empty is that one can.
func Missing() string {
	if runtime.GOARCH != "amd64" {
		return "needs another kernel: there is one for amd64 only"
	}
	if os.Getenv(EnvKernel) == "" {
		return "needs another kernel: " + EnvKernel + " names none"
	}
	for _, program := range []string{"qemu-system-x86_64", "mkfs.ext4"} {
		if _, err := exec.LookPath(program); err != nil {
			return "needs another kernel: there is no " + program + " to run one"
		}
	}
	return ""
}

// Run starts the machine, and returns what the command and the kernel wrote to the
// console and the status with which the command ended. The machine ends with ctx.
// dir is an empty directory for its disk.
func (m Machine) Run(ctx context.Context, dir string) (console string, status int, err error) {
	kernels, err := filepath.Glob(filepath.Join(m.Kernel, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return "", 0, fmt.Errorf("there are %d kernels in %s: %w", len(kernels), m.Kernel, errors.Join(err))
	}
	modules, err := withDependencies(filepath.Join(m.Kernel, "lib", "modules"), append([]string{"virtio_pci", "virtio_blk"}, m.Modules...))
	if err != nil {
		return "", 0, err
	}
	disk, initrd := filepath.Join(dir, "root.img"), filepath.Join(dir, "initrd")
	if err := m.makeRoot(ctx, dir, disk); err != nil {
		return "", 0, err
	}
	if err := m.makeInitrd(initrd, modules); err != nil {
		return "", 0, err
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", "2", "-m", strconv.Itoa(m.MemoryMB), "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+disk, "-kernel", kernels[0], "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), 0, fmt.Errorf("run machine: %w", err)
	}
	before, after, ok := strings.Cut(out.String(), plan.Ended)
	if !ok {
		return out.String(), 0, errors.New("the machine ended before its command")
	}
	word, _, _ := strings.Cut(after, "\n")
	status, err = strconv.Atoi(strings.TrimSpace(word))
	return before, status, err
}

// makeRoot makes the disk, with a filesystem of which the files are a part from the
// beginning.
func (m Machine) makeRoot(ctx context.Context, dir, disk string) error {
	tree := filepath.Join(dir, "root")
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "etc", "var"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			return err
		}
	}
	for inside, here := range m.Files {
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

func (m Machine) makeInitrd(path string, modules []string) error {
	p := plan.Plan{Command: m.Command, Env: m.Env}
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
