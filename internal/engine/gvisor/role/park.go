//go:build linux

package role

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/gomaxprocs"
	glog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/ring0"
	"gvisor.dev/gvisor/pkg/sentry/hostmm"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/timing"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/claim"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/poll"
)

// A sentry is started parked: it does all that does not depend on whose it is
// going to be, and then waits on a socket for its command line and descriptors.
// When that socket ends instead, because the engine gave it up or died, it ends.
// So the same sentry serves who cannot wait for its start and who can: a parked
// one knows nothing of any sandbox, and becomes one sandbox's and no other's.

// park sets up a sentry, waits, and returns the command line to go on with, and where its
// title is. What the garbage collector must not close is in keep.
func park() (args []string, title []byte, keep []any) {
	// gVisor's log of its start is not read, and its output would be taken for the reason of
	// its death.
	glog.SetTarget(silence{})
	glog.SetLevel(glog.Warning)
	cpus, err := strconv.Atoi(os.Args[1])
	if err != nil {
		giveUp("read number of processors", err)
	}
	unix.CloseOnExec(claim.Socket)
	unix.CloseOnExec(claim.Crash)
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		seccheck.Initialize() // takes a while, and nothing here needs it
	}()
	ring0.InitDefault()
	flags := hostFlags()
	// The process that started the daemon may have given it another.
	unix.Umask(0o022)
	if err := setUpRoot(&specs.Spec{}, &config.Config{}, nil); err != nil {
		giveUp("set up root", err)
	}
	_, unmounter := sandboxsetup.ExecProcUmounter()
	flags = append(flags, "--proc-mount-sync-fd="+strconv.Itoa(int(pidfd.RawFD(unmounter))))
	if err := sandboxsetup.ApplyCapsAllThreads(&specs.LinuxCapabilities{}, nil); err != nil {
		giveUp("drop capabilities", err)
	}
	gomaxprocs.SetBase(cpus)
	p, err := startPlatform()
	if err != nil {
		giveUp("start platform", err)
	}
	<-checked
	if _, err := unix.Write(claim.Socket, []byte{'\n'}); err != nil {
		os.Exit(0) // the engine has gone
	}
	c, err := awaitClaim()
	if err != nil {
		giveUp("read claim", err)
	}
	title = takeTitle()
	setTitle(title, c.Title)
	if i := slices.Index(c.Args, "boot"); i >= 0 {
		c.Args = slices.Insert(c.Args, i+1, flags...)
	}
	return c.Args, title, []any{unmounter, p}
}

// silence discards a log.
type silence struct{}

// Emit implements the log target of gVisor.
func (silence) Emit(int, glog.Level, time.Time, string, ...any) {}

// setUpRoot makes an empty directory with a /proc the root of this process.
//
//go:linkname setUpRoot gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd.setUpChroot
func setUpRoot(spec *specs.Spec, conf *config.Config, timer *timing.Timer) error

// hostFlags are what gVisor would read of the host if it still could when it gets
// to it. What cannot be read is left out, as gVisor does.
func hostFlags() []string {
	var flags []string
	if b, err := os.ReadFile("/sys/devices/virtual/dmi/id/product_name"); err == nil {
		flags = append(flags, "--product-name="+strings.TrimSpace(string(b)))
	}
	for _, name := range []string{"shmem_enabled", "defrag"} {
		if v, err := hostmm.ReadTransparentHugepageEnum(name); err == nil {
			flags = append(flags, "--host-thp-"+strings.ReplaceAll(name, "_", "-")+"="+v)
		}
	}
	return flags
}

// startPlatform makes the process from which every stub is going to be forked.
// That is made once for each process of gVisor, with the first platform; the one
// that the sandbox gets is the second.
func startPlatform() (platform.Platform, error) {
	c, err := platform.Lookup("systrap")
	if err != nil {
		return nil, err
	}
	return c.New(platform.Options{ApplicationCores: runtime.GOMAXPROCS(0)})
}

// awaitClaim waits for the message and gives the descriptors with it their numbers.
func awaitClaim() (claim.Claim, error) {
	b, oob := make([]byte, claim.MaxBytes), make([]byte, unix.CmsgSpace(4*claim.MaxFiles))
	var n, oobn, flags int
	for {
		var err error
		n, oobn, flags, _, err = unix.Recvmsg(claim.Socket, b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return claim.Claim{}, os.NewSyscallError("recvmsg", err)
		}
	}
	if n == 0 {
		os.Exit(0)
	}
	quietStart() // again: it may have waited for long
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return claim.Claim{}, errors.New("it is too long")
	}
	var c claim.Claim
	if err := json.Unmarshal(b[:n], &c); err != nil {
		return claim.Claim{}, err
	}
	fds, err := receivedFDs(oob[:oobn])
	if err != nil {
		return claim.Claim{}, err
	}
	// They have ascending numbers, each below the one that it gets, unless it has
	// it already: from the last on none is in the way of another.
	for i, fd := range slices.Backward(fds) {
		want := claim.FirstFile + i
		if fd == want {
			continue
		}
		if fd > want {
			return claim.Claim{}, fmt.Errorf("descriptor %d is in the way of %d", fd, want)
		}
		if err := unix.Dup3(fd, want, unix.O_CLOEXEC); err != nil {
			return claim.Claim{}, os.NewSyscallError("dup3", err)
		}
		_ = unix.Close(fd)
	}
	if c.Attached {
		if err := attach(); err != nil {
			return claim.Claim{}, err
		}
	}
	_ = unix.Close(claim.Socket)
	return c, nil
}

// attach makes this process die with the thread that forked it. If that died
// before, the socket has ended.
func attach() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if events, err := poll.Events(claim.Socket, 0, 0); err == nil && events&unix.POLLHUP != 0 {
		os.Exit(0)
	}
	return nil
}

func receivedFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range msgs {
		more, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// takeTitle is the place of the command line that this process was started with, whose
// last argument only reserves space. The arguments are not used any more.
func takeTitle() []byte {
	n := len(os.Args) // each ends with a zero byte
	for _, arg := range os.Args {
		n += len(arg)
	}
	room := unsafe.Slice(unsafe.StringData(os.Args[0]), n)
	os.Args = nil // they are overwritten
	return room
}

// setTitle writes the command line that others are shown. It is what ps shows, and how an
// engine finds a sentry that is not on record.
func setTitle(room []byte, title []string) {
	clear(room)
	copy(room[:len(room)-1], strings.Join(title, "\x00"))
}

// giveUp says why, in the file that the engine reads a sentry's last words from.
func giveUp(what string, err error) {
	_, _ = os.Stderr.WriteString("park: " + what + ": " + err.Error() + "\n")
	os.Exit(exitFailed)
}
