//go:build linux

package role

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"
)

// exitGuard is the exit code of a sentry that could not have its guard.
const exitGuard = 114

// exitFailed is the exit code of a sentry that could not be set up.
const exitFailed = 115

// Dispatch runs the role that this process was started in and does not return,
// or returns at once when it was started in none. Roles are told by argv[0], so
// that no argument a person types can select one. It must be the first thing
// that main (or TestMain) calls: nothing may have started threads or opened
// files by then.
func Dispatch() {
	switch os.Args[0] {
	case early.Pooled:
		quietStart()
		registerSignals()
		fillSentryPrograms()
		args, title, keep := park()
		defer runtime.KeepAlive(keep)
		args, err := Install(args, title)
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(exitGuard)
		}
		os.Args = args
	case early.Gofer:
		fillGoferPrograms()
		quietStart()
	default:
		return
	}
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	os.Exit(1) // cli.Run exits
}

// quietStart keeps the collector away from the start, which allocates little
// that dies young. A sandbox that lives longer gives back what its start took.
func quietStart() {
	debug.SetGCPercent(-1)
	time.AfterFunc(2*time.Second, func() {
		debug.SetGCPercent(100)
		debug.FreeOSMemory()
	})
}

// registerSignals asks for every signal that the sentry is going to forward.
// The first Notify of each costs a hand-over between threads; done here, beside
// the rest of the start, the sentry finds them enabled.
func registerSignals() {
	go func() {
		ch := make(chan os.Signal, 1)
		for s := unix.Signal(1); s <= 33; s++ {
			switch s {
			case unix.SIGURG, unix.SIGPIPE, unix.SIGCHLD:
			default:
				signal.Notify(ch, s)
			}
		}
	}()
}
