// Package agent is the host's end of the protocol that the program inside every
// sandbox speaks. What the other end says is hostile input: each frame is
// bounded, each wait ends with its context, and nothing it says can make this
// package panic or keep more than a bounded amount.
package agent

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
)

const (
	// Argv0 makes an executable that holds the guest take its role.
	Argv0 = "cloche-agent"
	// Port is the TCP port on 127.0.0.1 inside.
	Port = 1
	// TokenLen is the length of a token, in bytes.
	TokenLen = 32
	// DefaultRingBytes is how much of the output of a process its log keeps, for
	// each of its two streams.
	DefaultRingBytes = 1 << 20
	// DefaultLogBytes is how much all logs together keep.
	DefaultLogBytes = 32 << 20
)

// UID is the agent's own uid and gid where the kernel does not guard it: outside
// of the range that its processes' user namespace maps, so that none of them,
// uid 0 included, can become it, signal it or own what it owns. An agent that is
// started as root becomes it, at some cost.
const UID = 4_294_967_000

// Config is what the agent is told at its start, as JSON on descriptor 3.
type Config struct {
	// Token is what a connection must show.
	Token []byte `json:"token"`
	// Port to listen on at 127.0.0.1; 0 is the constant Port.
	Port int `json:"port,omitempty"`
	// PidsMax bounds the processes and threads that the agent starts, together;
	// the agent is not counted. 0 is unlimited. It needs a cgroup v2 hierarchy inside
	// that belongs to the sandbox; without one the agent refuses to start.
	PidsMax int64 `json:"pids_max,omitempty"`
	// CPUs and MemoryBytes are limits that the engine enforces from outside. The agent
	// shows them to programs, which size themselves by them: in the files of the cgroups
	// that it makes and, where the kernel is the sandbox's own, as the CPUs of the
	// affinity mask. 0 shows none.
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	// RingBytes, twice, are kept of each process's output; 0 is DefaultRingBytes.
	RingBytes int64 `json:"ring_bytes,omitempty"`
	// LogBytes bound what is kept of all processes together; 0 is DefaultLogBytes.
	// The oldest that have ended give way first; one that runs keeps 64 KiB.
	LogBytes int64 `json:"log_bytes,omitempty"`
	// SingleUser says that uid 0 is the only one that files can belong to
	// (rootless): another user of an exec is that one under another number.
	SingleUser bool `json:"single_user,omitempty"`
	// User runs what names no user: "name", "uid" or "uid:gid"; empty is root.
	User string `json:"user,omitempty"`
	// Sudo says that programs of users other than root may run commands as root, by the program sudo.
	Sudo bool `json:"sudo,omitempty"`
	// Hostname is set at the start where the kernel allows it; empty leaves it.
	Hostname string `json:"hostname,omitempty"`
	// NoCgroup keeps the agent away from cgroups. It must be set where a cgroup2
	// mount inside would show groups that are not the sandbox's own. A process
	// tree is then found by walking /proc, which a process that has detached
	// itself from its ancestors before the walk escapes until the sandbox ends.
	NoCgroup bool `json:"no_cgroup,omitempty"`
	// KernelGuardsInit says that the kernel already keeps uid 0 inside from
	// killing and stopping the agent, as Linux does for PID 1 of a pid namespace.
	// Otherwise (gVisor, and by default) the agent takes a uid of its own and
	// starts every process in a user namespace that has all other uids.
	KernelGuardsInit bool `json:"kernel_guards_init,omitempty"`
	// OwnThreads has the agent make its threads before anything else is started: where
	// a limit of the processes inside counts them too, it must not need one later.
	OwnThreads bool `json:"own_threads,omitempty"`
	// Confine says that the kernel is the host's: processes make the system calls of
	// package confine's profile only. It goes with KernelGuardsInit.
	Confine bool `json:"confine,omitempty"`
}

// earlyPids is the pids limit of an agent that does not know its own yet: as many as a kernel has.
const earlyPids = 1 << 22

// Early returns the part that an agent can be told before it is known whose it is. It is written as
// a line before the configuration itself, which says all of it again. The two differ only in the
// token, the user, sudo and the number of PidsMax.
func (c Config) Early() Config {
	c.Token, c.User, c.Sudo = nil, "", false
	if c.PidsMax > 0 {
		c.PidsMax = earlyPids
	}
	return c
}

// EarlyLine returns the early configuration as it is written, without the end of the line.
func (c Config) EarlyLine() []byte {
	line, err := json.Marshal(c.Early())
	if err != nil {
		return nil // as Marshal fails then
	}
	return line
}

// Marshal returns what is written to descriptor 3.
func (c Config) Marshal() ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode agent configuration: %w", err)
	}
	return data, nil
}

// NewToken returns a fresh token.
func NewToken() []byte {
	b := make([]byte, TokenLen)
	rand.Read(b) // never fails since Go 1.24
	return b
}
