//go:build linux

package hostrootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StandIn is a file that a sandbox has in the place of one of /proc.
type StandIn struct {
	// Name is a file name that no other has.
	Name string
	// Target is the file's path in the sandbox.
	Target string
	// Text is its content.
	Text string
}

// StandIns are files that programs expect and whose content would be the host's. Each
// has the form of the kernel's, with counters that never change.
func StandIns() []StandIn {
	made := []StandIn{
		{"stat", "/proc/stat", quietStat(readOnline(), bootTime())},
		{"vmstat", "/proc/vmstat", "pgpgin 0\npgpgout 0\npswpin 0\npswpout 0\npgfault 0\npgmajfault 0\n"},
		{"swaps", "/proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"},
		{"boot_id", "/proc/sys/kernel/random/boot_id", randomUUID() + "\n"},
	}
	if text := controllers(readCgroups()); text != "" {
		made = append(made, StandIn{"cgroups", "/proc/cgroups", text})
	}
	return made
}

// controllers is a /proc/cgroups with the controllers of this one, each with one group. The
// JVM reads no limits where the file does not list them.
func controllers(cgroups string) string {
	var b strings.Builder
	for line := range strings.Lines(cgroups) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
			b.WriteString(line)
		case len(f) == 4:
			b.WriteString(f[0] + "\t" + f[1] + "\t1\t" + f[3] + "\n")
		}
	}
	return b.String()
}

// readCgroups is this machine's /proc/cgroups; it may be empty.
func readCgroups() string {
	b, _ := os.ReadFile("/proc/cgroups")
	return string(b)
}

// PutStandIns puts them in their places in the calling thread's mount namespace, by way of a
// directory as cover has it. What this kernel's /proc does not have is passed over.
func PutStandIns(over string, files []StandIn) error {
	fill := func(at int) error {
		for _, f := range files {
			if err := writeStandIn(at, f); err != nil {
				return fmt.Errorf("make %s: %w", f.Target, err)
			}
		}
		return nil
	}
	err := cover(over, []string{"size=1m", "nr_inodes=16", "mode=755"}, fill, func() error {
		for _, f := range files {
			if err := putStandIn(filepath.Join(over, f.Name), f.Target); err != nil {
				return fmt.Errorf("cover %s: %w", f.Target, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cover files of /proc: %w", err)
	}
	return nil
}

func writeStandIn(dir int, s StandIn) error {
	fd, err := unix.Openat(dir, s.Name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	f := os.NewFile(uintptr(fd), s.Name)
	_, err = f.WriteString(s.Text)
	return errors.Join(err, f.Chmod(0o444), f.Close())
}

func putStandIn(file, target string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, target, &how)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer func() { _ = unix.Close(at) }()
	return coverAt(file, at)
}

// quietStat is a /proc/stat of these processors, given as the kernel lists them, and the
// time of the start, all of which a program inside has by other means too. Its counters
// stand at nothing.
func quietStat(online string, boot int64) string {
	var b strings.Builder
	const idle = " 0 0 0 0 0 0 0 0 0 0\n"
	b.WriteString("cpu " + idle)
	for part := range strings.SplitSeq(strings.TrimSpace(online), ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || last-first > maxProcessors {
			continue
		}
		for n := first; n <= last; n++ {
			b.WriteString("cpu" + strconv.Itoa(n) + idle)
		}
	}
	fmt.Fprintf(&b, "intr 0\nctxt 0\nbtime %d\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n", boot)
	return b.String()
}

// maxProcessors is more than a kernel can have.
const maxProcessors = 1 << 14

// readOnline is the list of the processors that are at work.
func readOnline() string {
	b, _ := os.ReadFile("/sys/devices/system/cpu/online")
	return string(b)
}

// bootTime is when the machine was started, in seconds.
func bootTime() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Now().Unix() - ts.Sec
}

// randomUUID is a UUID of version 4.
func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
