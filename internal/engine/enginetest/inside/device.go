//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/confine"
)

// devices uses every device that a program may count on, and says which of them does
// not do what it is for. Confined, it does so as what an agent starts on the host's
// own kernel: behind its filter of system calls.
func devices(confined bool) error {
	// The filter is the thread's, and so is a controlling terminal for its beginning.
	runtime.LockOSThread()
	if confined {
		if err := confineLikeAgent(); err != nil {
			return err
		}
	}
	var errs []error
	for _, d := range []struct {
		name string
		use  func() error
	}{
		{"null", null},
		{"zero", func() error {
			return reads("/dev/zero", func(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) })
		}},
		{"full", full},
		{"random", func() error { return reads("/dev/random", anything) }},
		{"urandom", func() error { return reads("/dev/urandom", anything) }},
		{"shm", shared},
		{"fd, stdin, stdout and stderr", standard},
		{"ptmx, pts and tty", terminal},
	} {
		if err := d.use(); err != nil {
			errs = append(errs, fmt.Errorf("/dev/%s: %w", d.name, err))
		}
	}
	return errors.Join(errs...)
}

// confineLikeAgent does to the calling thread what an agent does to the one that it
// starts programs from.
func confineLikeAgent() error {
	agent, err := confine.ThreadsOf(1)
	if err == nil {
		err = confine.Proc()
	}
	if err == nil {
		err = confine.Thread(agent)
	}
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	return nil
}

func anything(b []byte) bool { return !bytes.Equal(b, make([]byte, len(b))) }

func null() error {
	if err := os.WriteFile("/dev/null", []byte("gone"), 0); err != nil {
		return err
	}
	b, err := os.ReadFile("/dev/null")
	if err == nil && len(b) > 0 {
		err = fmt.Errorf("it holds %d bytes", len(b))
	}
	return err
}

func reads(path string, ok func([]byte) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 64)
	if _, err := io.ReadFull(f, b); err != nil {
		return err
	}
	if !ok(b) {
		return fmt.Errorf("it says %x", b)
	}
	return nil
}

func full() error {
	if err := reads("/dev/full", func(b []byte) bool { return !anything(b) }); err != nil {
		return err
	}
	if err := os.WriteFile("/dev/full", []byte("x"), 0); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("a write to it is %w", err)
	}
	return nil
}

// shared maps a file of /dev/shm as two programs would that share memory.
func shared() error {
	f, err := os.CreateTemp("/dev/shm", "sem.")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(m, "shared")
	if err := unix.Munmap(m); err != nil {
		return err
	}
	b := make([]byte, 6)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "shared" {
		return fmt.Errorf("what was written to memory is %q in the file, %w", b, err)
	}
	return nil
}

// standard opens this process's own descriptors by name.
func standard() error {
	p, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer p.Close()
	defer w.Close()
	for n, name := range []string{"/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		kept, err := unix.Dup(n)
		if err != nil {
			return err
		}
		if err = unix.Dup2(int(w.Fd()), n); err == nil {
			err = os.WriteFile(name, []byte{'0' + byte(n)}, 0)
		}
		if err := errors.Join(err, unix.Dup2(kept, n), unix.Close(kept)); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/dev/fd/"+strconv.Itoa(int(w.Fd())), []byte("3"), 0); err != nil {
		return err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(p, b); err != nil || string(b) != "0123" {
		return fmt.Errorf("what was written by name is %q, %w", b, err)
	}
	return nil
}

// terminal makes a pair, takes it for this session's and speaks through /dev/tty.
func terminal() error {
	if f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		f.Close()
		return errors.New("it is the terminal of another process")
	} else if !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("without a terminal it is %w", err)
	}
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer ptmx.Close()
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("ask for the number: %w", err)
	}
	pts, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer pts.Close()
	signal.Ignore(unix.SIGHUP) // a session's first process gets it when the terminal goes
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	if err := unix.IoctlSetInt(int(pts.Fd()), unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("take the terminal: %w", err)
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	if _, err := tty.WriteString("here"); err != nil {
		return err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(ptmx, b); err != nil || string(b) != "here" {
		return fmt.Errorf("what went into the terminal comes out as %q, %w", b, err)
	}
	return nil
}
