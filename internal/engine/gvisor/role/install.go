//go:build linux

package role

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

// Install keeps the mounts of a sandbox by this process's system calls and puts a guard
// behind them. The guard has rules if the first of the arguments asks for them, and gets
// them later if that asks for a Late, which writes to the process's title. Install returns
// the arguments without that. It is for a sentry that has not begun to be one.
func Install(args []string, title []byte) ([]string, error) {
	keep := &mounts{}
	for _, table := range tables() {
		keep.watch(table)
	}
	g := &guard{mounts: keep, begun: make(chan struct{})}
	keep.tell = g.tellLayer
	for _, table := range tables() {
		g.watch(table)
	}
	if len(args) < 2 {
		return args, nil
	}
	rest := append(args[:1:1], args[2:]...)
	if text, ok := strings.CutPrefix(args[1], claim.LateFlag); ok {
		fd, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", claim.LateFlag, err)
		}
		return rest, serveLate(fd, g, title)
	}
	text, ok := strings.CutPrefix(args[1], refusal.FlagName)
	if !ok {
		return args, nil
	}
	return rest, g.read(text)
}

// read gives the guard the rules that a flag says.
func (g *guard) read(flag string) error {
	var fds []int
	for s := range strings.SplitSeq(flag, ",") {
		fd, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("read %s: %w", refusal.FlagName, err)
		}
		fds = append(fds, fd)
	}
	if len(fds) != 3 {
		return fmt.Errorf("read %s: %d descriptors", refusal.FlagName, len(fds))
	}
	r, err := readRules(fds[0])
	if err != nil {
		return err
	}
	return g.use(r, fds[1], fds[2])
}

// tables are those by which this build of gVisor can look up a call.
func tables() []*kernel.SyscallTable {
	return []*kernel.SyscallTable{linux.AMD64, linux.ARM64}
}

func readRules(fd int) (rules, error) {
	f := os.NewFile(uintptr(fd), "rules")
	defer f.Close()
	var r rules
	_, err := f.Seek(0, io.SeekStart)
	if err == nil {
		err = json.NewDecoder(f).Decode(&r)
	}
	if err == nil && len(r.Rules) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return rules{}, fmt.Errorf("read rules of a guard: %w", err)
	}
	return r, nil
}

// mapCount maps the count and closes its file, so that this process cannot make it
// longer.
func mapCount(fd int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, refusal.CountBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map count of a guard: %w", err)
	}
	if err := unix.Close(fd); err != nil {
		return nil, fmt.Errorf("close count of a guard: %w", err)
	}
	return b, nil
}
