//go:build linux

package gvisor

import (
	"fmt"
	"net"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/urpc"
)

// The calls of a sentry's control server, and what they take. They are those of packages boot and control of
// gVisor, which would link a whole sentry: TestCalls compares them.
const (
	callStart       = "containerManager.StartRoot"
	callSetNetwork  = "containerManager.SetNetworkArgs"
	callPortForward = "containerManager.PortForward"
	callPause       = "containerManager.Pause"
	callResume      = "containerManager.Resume"
	callTarLayer    = "Fs.TarRootfsUpperLayer"
	callCheckpoint  = "containerManager.Checkpoint"
	callRestore     = "containerManager.Restore"
)

// portForward asks for a stream to a port inside.
type portForward struct {
	urpc.FilePayload
	ContainerID string
	Port        uint16
}

// tarLayer asks for the changes of the root as tar.
type tarLayer struct {
	urpc.FilePayload
	ContainerID string
}

// checkpointing asks for the memory of the sandbox to be saved. The payload has the files of checkpointFiles. With
// Resume the sandbox does not end with that.
type checkpointing struct {
	urpc.FilePayload
	Metadata         map[string]string `json:"metadata"`
	ExcludeZeroPages bool              `json:"app_mf_exclude_committed_zero_pages"`
	HavePagesFile    bool              `json:"have_pages_file"`
	Resume           bool
}

// uncompressed is the metadata of a checkpoint that is not compressed.
func uncompressed() map[string]string { return map[string]string{"compression": "none"} }

// restoration asks for a sandbox that was not started to continue from a checkpoint. The payload has its files.
type restoration struct {
	urpc.FilePayload
	HavePagesFile bool
}

// network describes the devices of a sandbox. The file of each of FDLinks is in the payload.
type network struct {
	urpc.FilePayload
	LoopbackLinks    []loopbackLink
	IsRestore        bool     `json:",omitempty"`
	FDLinks          []fdLink `json:"FDBasedLinks"`
	Defaultv4Gateway defaultRoute
}

type loopbackLink struct {
	Name      string
	Addresses []address
	Routes    []route
}

type fdLink struct {
	Name              string
	MTU               int
	Addresses         []address
	Routes            []route
	TXChecksumOffload bool
	RXChecksumOffload bool
	LinkAddress       net.HardwareAddr
	Neighbors         []neighbor
	NumChannels       int
}

type address struct {
	Address   net.IP
	PrefixLen int
}

type route struct {
	Destination net.IPNet
	Gateway     net.IP
}

type defaultRoute struct {
	Route route
	Name  string
}

type neighbor struct {
	IP           net.IP
	HardwareAddr net.HardwareAddr
}

// loopback is the loopback device that every sandbox has.
func loopback() loopbackLink {
	return loopbackLink{
		Name:      "lo",
		Addresses: []address{{net.IPv4(127, 0, 0, 1).To4(), 8}, {net.IPv6loopback, 128}},
		Routes: []route{
			{Destination: net.IPNet{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}},
			{Destination: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
		},
	}
}

// What is below and above in a mount whose descriptor the sentry gets.
const (
	lowerGofer   = "lisafs"
	lowerErofs   = "erofs"
	upperNone    = "none"
	upperMemory  = "memory"
	upperUnnamed = "anon"
)

// mountConf is one element of the flag that describes these mounts; size bounds the upper layer, 0 is unlimited.
func mountConf(lower, upper string, size int64) string {
	conf := lower + ":" + upper
	if size > 0 {
		conf += fmt.Sprintf(":size=%d", size)
	}
	return conf
}

// allCapabilities are those of the agent: it gives most of them up before it starts a program.
func allCapabilities() *specs.LinuxCapabilities {
	names := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
		"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
		"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
		"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
		"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Inheritable: names, Permitted: names, Ambient: names}
}
