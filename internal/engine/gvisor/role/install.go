//go:build linux

package role

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// Install keeps the mounts of a sandbox by this process's system calls, puts a guard
// behind them if the first of its arguments asks for one, and returns the arguments
// without that. It is for a sentry that has not begun to be one.
func Install(args []string) ([]string, error) {
	keep := &mounts{}
	for _, table := range tables() {
		keep.watch(table)
	}
	if len(args) < 2 || !strings.HasPrefix(args[1], refusal.FlagName) {
		return args, nil
	}
	var fds []int
	for s := range strings.SplitSeq(strings.TrimPrefix(args[1], refusal.FlagName), ",") {
		fd, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", refusal.FlagName, err)
		}
		fds = append(fds, fd)
	}
	if len(fds) != 3 {
		return nil, fmt.Errorf("read %s: %d descriptors", refusal.FlagName, len(fds))
	}
	rules, err := readRules(fds[0])
	if err != nil {
		return nil, err
	}
	count, err := mapCount(fds[2])
	if err != nil {
		return nil, err
	}
	g := &guard{mounts: keep, rules: rules, tell: &teller{pipe: fds[1], count: count, seen: binary.LittleEndian.Uint64(count)}}
	keep.tell = g.tellLayer
	for _, table := range tables() {
		g.watch(table)
	}
	return append(args[:1:1], args[2:]...), nil
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
