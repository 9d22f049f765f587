//go:build linux

package fake

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
)

// hold keeps duplicates of both ends of a link for as long as the process lives,
// which has no use for them: a test plays the sandbox's part, see Machine.Link.
func (i *instance) hold(l *engine.Link) error {
	if l == nil {
		return nil
	}
	for _, f := range []*os.File{l.Guest, l.Far} {
		dup, err := duplicate(f)
		if err != nil {
			return err
		}
		i.mu.Lock()
		i.links = append(i.links, dup)
		i.mu.Unlock()
	}
	return nil
}

func (i *instance) letGo() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, f := range i.links {
		_ = f.Close()
	}
	i.links = nil
}

// Link is a duplicate of an instance's end of its link, which is the caller's.
func (m *Machine) Link(state []byte) (*os.File, error) {
	i, err := m.find(state)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.links) == 0 {
		return nil, errors.New("the instance has no link")
	}
	return duplicate(i.links[0])
}

func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("duplicate link: %w", err)
	}
	var fd int
	var derr error
	err = raw.Control(func(from uintptr) { fd, derr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 3) })
	if err := errors.Join(err, derr); err != nil {
		return nil, fmt.Errorf("duplicate link: %w", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}
