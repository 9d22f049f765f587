//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

const (
	loopControl = "/dev/loop-control"
	// loopTries bounds the race for a free device with the rest of the machine.
	loopTries = 64
)

// attachLoop returns the loop device of a file, which stays one as long as
// anything uses it and goes by itself when nothing does any more. A file never
// has two: the one that a sandbox of a dead daemon still uses is found again.
// Its base name must be unique on this machine. The caller holds the lock that
// keeps others from attaching the same file, and closes the result.
func attachLoop(file *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, fmt.Errorf("attach loop device: stat file: %w", err)
	}
	if dev, err := findLoop(filepath.Base(file.Name()), &st); dev != nil || err != nil {
		return dev, err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach loop device: %w", err)
	}
	defer control.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach loop device: ask for a free one: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if errors.Is(err, unix.ENOENT) {
			e := api.Errorf(api.CodeUnsupported, "a workspace with a size needs a loop device, and this machine has no device file for number %d", n).WithCause(err)
			e.Field = "workspace.size_bytes"
			return nil, e.WithHint("a container that the daemon runs in needs all of /dev/loop*; or ask for workspace.quota %q", api.QuotaMeasured)
		}
		if err != nil {
			return nil, fmt.Errorf("attach loop device: %w", err)
		}
		config := unix.LoopConfig{
			Fd: uint32(file.Fd()), Size: blockSize,
			// What is written need not be held in memory twice. A filesystem that cannot
			// do that does without.
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
		}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(file.Name()))
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) { // another process was faster
			return nil, fmt.Errorf("attach loop device %d: %w", n, err)
		}
	}
	return nil, fmt.Errorf("attach loop device: %d free ones were taken by others", loopTries)
}

// blockSize is what a loop device is read and written in.
const blockSize = 4096

// findLoop opens the loop device that has the file; nil when none has.
func findLoop(base string, st *unix.Stat_t) (*os.File, error) {
	const blocks = "/sys/block"
	entries, err := os.ReadDir(blocks)
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		// A free device has no such file. A file that was removed has words behind its name.
		backing, err := os.ReadFile(filepath.Join(blocks, e.Name(), "loop", "backing_file"))
		if err != nil || !strings.Contains(string(backing), base) {
			continue
		}
		dev, err := os.OpenFile("/dev/"+e.Name(), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("open loop device: %w", err)
		}
		// From here on it cannot become another's.
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			return dev, nil
		}
		_ = dev.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) { // it has just gone
			return nil, fmt.Errorf("look at loop device %s: %w", e.Name(), err)
		}
	}
	return nil, nil
}
