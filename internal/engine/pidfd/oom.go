//go:build linux

package pidfd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Values of oom_score_adj, by which the kernel chooses what it kills when memory runs
// out: the program of a sandbox before what keeps the sandbox, and that before the daemon.
// Each is a distance in thousandths of the memory there is.
const (
	// OOMPrograms is for the programs of a sandbox. The agent gives it to those on the
	// host's own kernel.
	OOMPrograms = 1000
	// OOMDaemon is for a daemon that may lower its own, as Docker's service has it.
	OOMDaemon = -500
	// oomStep is what a sandbox is above its daemon.
	oomStep = 100
)

// OOMScore is the value of this process.
func OOMScore() (int, error) {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %w", err)
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %w", err)
	}
	return n, nil
}

// OOMSandbox is for what keeps a sandbox: its agent, sentry and gofer, and the program
// that isolates it. It is above the value of this process, its daemon, and never below what
// other processes of the machine begin with.
func OOMSandbox() int {
	own, err := OOMScore()
	if err != nil {
		own = 0
	}
	return min(max(own+oomStep, 0), OOMPrograms-oomStep)
}

// SetOOMScore gives a process a value. It must not share its memory with one that keeps
// another: the kernel gives both the same. Only who has CAP_SYS_RESOURCE may go below what
// the process was born with. It is best effort for most: without it the kernel
// chooses by size.
func SetOOMScore(pid, score int) error {
	return Write("/proc/"+strconv.Itoa(pid), "oom_score_adj", strconv.Itoa(score))
}

// KeepFromOOM lowers this process to OOMDaemon. A value that an operator has chosen
// stays, and so does the value of a process that may not lower it: both are no error. It returns
// the value that holds.
func KeepFromOOM() (int, error) {
	own, err := OOMScore()
	if err != nil || own != 0 {
		return own, err
	}
	if err := SetOOMScore(os.Getpid(), OOMDaemon); err != nil {
		if os.IsPermission(err) {
			return own, nil
		}
		return own, err
	}
	return OOMDaemon, nil
}
