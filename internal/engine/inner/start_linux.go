package inner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descriptors of the agent. Those of a link follow.
const (
	configFD = 3
	readyFD  = 4
)

// backlog is of the agent's socket.
const backlog = 1024

// Main plays a role and returns the status to exit with.
func Main() int {
	if len(os.Args) < 2 {
		return 2
	}
	args := os.Args[1:]
	if args[0] == Argv0 && len(args) > 1 {
		args = args[1:]
	}
	var err error
	switch role, args := args[0], args[1:]; role {
	case Start, Serve:
		err = start(role, args)
	case Dial:
		err = dial(args)
	default:
		return 2
	}
	if err != nil {
		_, _ = unix.Write(1, []byte(err.Error()+"\n"))
		return 1
	}
	return 0
}

// start becomes the agent. It returns only to say why not. Everything is done by
// system calls on one thread, whose identity the program is executed with.
func start(role string, args []string) error {
	if len(args) < 4 {
		return errors.New("start: nothing to start")
	}
	uid, err := strconv.ParseUint(args[0], 10, 31)
	if err != nil {
		return fmt.Errorf("start: no user: %w", err)
	}
	socket := args[1]
	give := func() ([]int, error) { return serveAt(socket) }
	if role == Start {
		port, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil {
			return fmt.Errorf("start: no port: %w", err)
		}
		give = func() ([]int, error) { return linkAt(int(port)) }
	}
	count, err := strconv.ParseUint(args[2], 10, 8)
	if err != nil || uint64(len(args)) < 3+count+1 {
		return errors.New("start: no number of directories, or fewer than that")
	}
	dirs, args := args[3:3+count], args[3+count:]
	for _, dir := range dirs {
		if role == Serve {
			if err := makeDirs(dir, 0o755); err != nil {
				return fmt.Errorf("make %s: %w", dir, err)
			}
		}
		if err := openUp(dir); err != nil {
			return fmt.Errorf("open %s to everybody: %w", dir, err)
		}
	}
	runtime.LockOSThread()
	if err := layDescriptors(give); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if uid != 0 {
		if err := become(int(uid)); err != nil {
			return complain(fmt.Errorf("start the agent as uid %d: %w", uid, err))
		}
	}
	return complain(fmt.Errorf("execute the agent: %w", unix.Exec(args[0], args, nil)))
}

// openUp lets each user write to a directory that is empty: one that the daemon has just made
// is root's. A directory with content is left as it is.
//
// It has no file of package os: the first of these starts the runtime's poller, which would
// go on with its descriptor after layDescriptors has put another file there, and end the
// program with status 2.
func openUp(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.Fchmod(fd, 0o777)
		}
		// Without the directory's own two entries.
		if _, _, names := unix.ParseDirent(buf[:n], -1, nil); len(names) > 0 {
			return nil
		}
	}
}

// complain tells on the descriptor that standard output has become.
func complain(err error) error {
	_, _ = unix.Write(readyFD, []byte(err.Error()+"\n"))
	return err
}

// layDescriptors reads the configuration and puts everything where the agent looks for it. What give
// returns comes after the configuration and the pipe.
func layDescriptors(give func() ([]int, error)) error {
	config, err := readConfig()
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	if _, err := unix.Write(pipe[1], config); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := unix.Close(pipe[1]); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	fds := []int{null, null, null, configFD: pipe[0], readyFD: 1}
	given, err := give()
	if err != nil {
		return err
	}
	fds = append(fds, given...)
	// Out of the way of the numbers that they are to have. What the runtime has there
	// is not used any more.
	high := make([]int, len(fds))
	for i, fd := range fds {
		if high[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 64); err != nil {
			return err
		}
	}
	for to, from := range high {
		if err := unix.Dup3(from, to, 0); err != nil {
			return fmt.Errorf("place descriptor %d: %w", to, err)
		}
	}
	_ = unix.CloseRange(uint(len(fds)), 1<<16, unix.CLOSE_RANGE_CLOEXEC) // what is open closes itself
	return nil
}

func readConfig() ([]byte, error) {
	var head [4]byte
	if err := readFull(head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxConfig {
		return nil, fmt.Errorf("%d bytes are more than the %d that it may have", n, MaxConfig)
	}
	config := make([]byte, n)
	return config, readFull(config)
}

func readFull(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(0, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the stream ended")
		}
		b = b[n:]
	}
	return nil
}

// become gives the calling thread another user and keeps its capabilities, also for
// the program that it executes.
func become(id int) error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id)},
		{unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)},
	} {
		// Not by the wrappers, which would change threads that may be gone.
		if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return e
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	for i := range data {
		data[i].Effective, data[i].Inheritable = data[i].Permitted, data[i].Permitted
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return err
	}
	for c := range 64 {
		if data[c/32].Permitted>>(c%32)&1 == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return err
		}
	}
	return nil
}
