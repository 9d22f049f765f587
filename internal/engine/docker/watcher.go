package docker

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// watcherArgv0 is the name under which an executable plays the watcher.
const watcherArgv0 = "cloche-docker-watcher"

// watcher is a process that has a container removed when this process is gone, which
// it sees at a pipe.
type watcher struct {
	pipe io.WriteCloser
	cmd  *exec.Cmd
	once sync.Once
}

// Dispatch plays the watcher, when this process was started for that, and does not
// return then. A main calls it first.
func Dispatch() {
	if len(os.Args) != 5 || os.Args[0] != watcherArgv0 {
		return
	}
	name, host, certs, container := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	os.Exit(keepWatch(name, host, certs, container))
}

// keepWatch waits for the end of standard input. A byte before it says that there is
// nothing to remove.
func keepWatch(name, host, certs, container string) int {
	if n, _ := io.ReadFull(os.Stdin, make([]byte, 1)); n > 0 {
		return 0
	}
	e, err := New(Options{Name: name, CertDir: certs, Inner: func() ([]byte, error) { return nil, nil }})
	if err != nil {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	d, err := e.daemonAt(host)
	if err == nil {
		err = d.remove(ctx, container)
	}
	if err != nil {
		return 1
	}
	return 0
}

// watchOver starts a watcher. It must not end before release.
func (e *Engine) watchOver(host, container string) (*watcher, error) {
	exe := e.opts.ExePath
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this executable: %w", err)
		}
	}
	cmd := exec.CommandContext(context.WithoutCancel(e.life), exe) // release ends it, or the end of this process
	cmd.Args = []string{watcherArgv0, e.opts.Name, host, e.opts.CertDir, container}
	cmd.Env = []string{}
	apart(cmd)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil, api.Errorf(api.CodeInternal, "the watcher cannot be started").WithCause(err)
	}
	return &watcher{pipe: pipe, cmd: cmd}, nil
}

// release ends a watcher that has nothing to watch any more.
func (w *watcher) release() {
	w.once.Do(func() {
		_, _ = w.pipe.Write([]byte{0}) // it may be dead
		w.pipe.Close()
		_ = w.cmd.Wait() // how it ended is of no interest
	})
}
