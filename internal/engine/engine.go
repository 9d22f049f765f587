// Package engine defines the contract between Cloche and an isolation engine. An engine creates an
// isolated instance from a Plan, starts the agent in it and returns a stream to the agent. The
// agent does everything else, so that is the same on every engine.
//
// To add an engine, implement [Engine] and run the tests of package enginetest against it.
package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Engine isolates sandboxes. Implementations are safe for concurrent use. Package enginetest tests
// every statement in these comments.
type Engine interface {
	// Name returns the name that requests use.
	Name() string
	// Probe reports what this engine can do on this machine now. It changes nothing and leaves
	// nothing behind.
	Probe(ctx context.Context) Report
	// Create creates the instance, starts the agent as its first process and returns when the
	// agent listens. On error it leaves nothing behind.
	Create(ctx context.Context, p Plan) (Instance, error)
	// Recover finds an existing instance by its State, in this process or a later one. It only
	// looks: it starts nothing and sends nothing to the instance. If the instance is dead,
	// Recover removes what is left of it and returns api.CodeNotFound. An instance from before
	// the last boot of the machine is dead, even if another process has its number now. The State
	// can be from an earlier build. If continuing to use such an instance could do more harm than
	// good, the operations that it no longer supports return api.CodeUnsupported. Dial, Done and
	// Close always work.
	Recover(ctx context.Context, state []byte) (Instance, error)
	// Sweep removes every instance of owner for which keep returns false, with everything that
	// belongs to it. It does not touch instances of other owners. A nil keep keeps none.
	// Instances that are kept can be created, used and closed at the same time.
	Sweep(ctx context.Context, owner string, keep func(id string) bool) error
}

// Keeps reports whether a Sweep keeps an instance.
func Keeps(keep func(id string) bool, id string) bool { return keep != nil && keep(id) }

// Instance is one isolated instance.
type Instance interface {
	// State returns what Recover needs. It is opaque, contains no secret, and does not change
	// during the life of the instance.
	State() []byte
	// Dial opens a new stream to the agent. It does not authenticate: the caller does, with the
	// token that it put into the agent's configuration. If a stream can delay bytes until more
	// are written, it has a method HoldsBack, and the caller nudges it.
	Dial(ctx context.Context) (net.Conn, error)
	// Done returns a channel that is closed when the instance has died, for any reason.
	Done() <-chan struct{}
	// Close kills every process and removes everything that Create made. It is idempotent and
	// does not depend on the processes inside. Close of a dead instance cleans up.
	Close(ctx context.Context) error
}

// CloseError is the cause of an error of Close that says what is left. If it does not list
// processes, no process is left.
type CloseError struct {
	Kind api.ResourceKind
	Err  error
}

// Error implements error.
func (e *CloseError) Error() string { return e.Err.Error() }

// Unwrap returns the underlying error.
func (e *CloseError) Unwrap() error { return e.Err }

// Statter is an Instance that can report its resource usage.
type Statter interface {
	Stat(ctx context.Context) (Stat, error)
}

// MemoryReporter is an Instance that can report how much memory each of its processes on this machine
// has.
type MemoryReporter interface {
	// MemoryParts leaves AgentBytes to the agent.
	MemoryParts() api.MemoryParts
}

// FileHolder is an Instance that can list the processes of this machine that may have files of its
// mounts open. An open file without a name can only be found through these processes.
type FileHolder interface {
	FileHolders(ctx context.Context) (pids []int, err error)
}

// Stoppable is an Instance that can report which of its processes on this machine are stopped.
type Stoppable interface {
	// Stopped returns the names of the instance's own processes that a signal or a debugger has
	// stopped, such as "sentry". It looks at the processes and sends them nothing. For a paused
	// instance it returns none.
	Stopped() []string
}

// Mortal is an Instance that can report how it ended.
type Mortal interface {
	// Ending returns what is known about the end. Call it after Done.
	Ending() Ending
}

// Ending is what is known about the end of an instance.
type Ending struct {
	// How is a clause that says how the instance ended, such as "its agent was killed by signal
	// KILL". It is empty if the end was not observed. It contains no names of the host.
	How string
	// LastWords is the last output of the engine's own program, limited in size. Only the
	// operator may see it.
	LastWords string
}

// Pauser is an Instance that can be paused.
type Pauser interface {
	// Pause pauses every process, with its memory, and returns when all are paused. From then on
	// the instance uses no CPU, data that is sent on an open stream waits, and Dial returns
	// api.CodeState. The machine holds the paused state, not this process: the instance stays
	// paused when the caller dies, and a recovered instance is still paused. A paused instance
	// can be closed. Pausing it again is not an error. On any other error the instance continues
	// as before, unless it is dead, which is api.CodeSandboxLost. If the machine or the instance
	// does not support pausing, the error is api.CodeUnsupported.
	Pause(ctx context.Context) error
	// Resume resumes all processes. It is not an error if the instance is not paused. Clocks
	// inside have continued during the pause.
	Resume(ctx context.Context) error
}

// RootWriter is an Instance that can export the changes to its root.
type RootWriter interface {
	// WriteRoot writes the writable layer of the root to w as a tar: added and changed files as
	// they are now, and a character device 0:0 for each removed file. A directory with the
	// extended attribute trusted.overlay.opaque hides everything that the image has there. Every
	// process is paused from before the first byte until WriteRoot returns, so the tar shows one
	// moment. If meanwhile is not nil, it is called during the pause before the root is written.
	// Afterwards the processes are resumed, even after an error. If the caller dies in between,
	// the instance is left paused, and Resume resumes it. An instance that cannot answer because
	// it is paused is api.CodeState. An error of w or of meanwhile ends WriteRoot and is returned
	// unchanged. The tar contains no sockets, and no extended attributes that are not text.
	WriteRoot(ctx context.Context, w io.Writer, meanwhile func(context.Context) error) error
	// HoldsFiles reports whether WriteRoot holds each complete file in the memory of the instance
	// for a moment, so that a file that is too large ends the instance.
	HoldsFiles() bool
}

// Suspender is an Instance whose memory can be saved to files, and continues later in other instances.
type Suspender interface {
	// Suspend pauses every process and saves the memory and the writable root to files in dir, an empty
	// 0700 directory of the caller. On success the instance stays paused, and the caller calls the Completion,
	// and closes the instance or resumes it, in any order. On an error it continues as before, unless it
	// is dead, and dir may contain a part of the files. Before the call, the agent must have closed all
	// connections that Dial returned. A paused instance is api.CodeState.
	Suspend(ctx context.Context, dir string) (Completion, error)
}

// Completion returns what Suspend saved when the files are on the disk and have checksums. It must be called once. On an error
// the directory may contain a part of the files.
type Completion func(ctx context.Context) (Memory, error)

// Memory is what Suspend saved. It is not secret, but what it names is.
type Memory struct {
	// Dir is the directory that the files are in.
	Dir string
	// Bytes is the size of the files on the disk.
	Bytes int64
	// Checked means that this process has written or checked the files, so an engine need not check them again.
	Checked bool
	// Note is what the engine needs to know of the files. It is opaque. The files are executed in a way:
	// it has their checksums, so it must be where only the caller can change it.
	Note []byte
}

// ErrMemoryRefused is the cause of the error about a memory that was changed, or that this engine cannot continue from.
var ErrMemoryRefused = errors.New("the memory is refused")

// Sum identifies a memory: it is a SHA-256 checksum, in hex, over the Note, which has the checksums of the files.
func (m Memory) Sum() string {
	sum := sha256.Sum256(m.Note)
	return hex.EncodeToString(sum[:])
}

// Refuser is an Instance whose kernel reports what rules on paths refused. The refused program gets
// EACCES.
type Refuser interface {
	// Refusals calls fn with what the rules of the Plan have refused to programs since Create, in
	// order. It returns when the instance has ended and everything has been reported, or with the
	// error of ctx. Refusals that happened while no process listened, neither this one nor an
	// earlier one, are reported too, or their number is: every refusal is reported once. Only one
	// caller at a time can call it. What the agent was refused is not reported.
	Refusals(ctx context.Context, fn func(PathDenial)) error
}

// PathDenial is one access that a rule on a path refused to a program. All of it comes from inside the
// instance, and is limited in size.
type PathDenial struct {
	// Rule is the index of the rule in the Plan. It is -1 for a record that has only Missed.
	Rule int
	// Op is the refused operation, such as "open" or "rename".
	Op string
	// Path is relative to the rule's mount.
	Path string
	// Program is the name that the program gives itself. UID is its user inside the instance.
	Program string
	UID     uint32
	// Missed is the number of refusals just before this one that are not reported.
	Missed int64
}

// Untold is the cause of an error. It is the number of refusals of a dead instance that were never
// reported.
type Untold int64

// Error implements error.
func (n Untold) Error() string {
	return strconv.FormatInt(int64(n), 10) + " refusals were not reported"
}

// Stat is the present resource usage of an instance.
type Stat struct {
	// MemoryBytes is the memory that the kernel charges to the whole instance.
	MemoryBytes int64
	// CPU is the CPU time used since Create.
	CPU time.Duration
	// OOMKills counts kills because of the memory limit since Create. It never decreases.
	OOMKills int64
}

// Report is the result of Probe. `cloche doctor` shows it.
type Report = api.EngineReport

// Plan is everything that an engine needs: host paths and numbers, with nothing left to decide. The
// creator of the Plan owns the paths. Those of Mounts are valid until Create returns, and the
// others until Close.
type Plan struct {
	// ID is unique under Owner and safe as a file name.
	ID string
	// Owner names the daemon (or in-process run) that the instance belongs to;
	// it is safe as a file name.
	Owner string
	// Dir is an empty 0700 directory for the engine's own files. The caller
	// removes it after Close.
	Dir string
	// Hostname is the sandbox's host name.
	Hostname string
	// Root is the root filesystem.
	Root Root
	// Mounts are directories (or files) of the host, in order of mounting.
	Mounts []Mount
	// Rules are the rules on paths that the agent will enforce. They are for an engine that can
	// report what they refuse (Refuser). The engine enforces none of them.
	Rules []PathRule
	// Volumes are volumes that the engine keeps, if it is a VolumeKeeper. For other engines it is
	// empty.
	Volumes []Volume
	// Tmpfs are memory filesystems, each with a size.
	Tmpfs []Tmpfs
	// Limits must be enforced; zero is no limit. A Plan never contains a limit that the engine's
	// Report says it cannot enforce.
	Limits Limits
	// Agent is the first process.
	Agent Agent
	// Link is the network. With a nil Link, the instance has only a loopback device. An engine
	// whose Report does not enforce "egress" refuses a Link with api.CodeUnsupported.
	Link *Link
	// DieWithParent makes the kernel kill the instance when the calling process dies. Otherwise
	// it keeps running.
	DieWithParent bool
	// Pool is what a Pooler may keep ready for the plans that come after this one.
	Pool Pool
	// Memory is what the instance continues from, and nil for a new one. The Plan is like the one of the
	// suspended instance, except that the sources of its mounts, its network, its host name and its ID can
	// be others. Config is not read: the agent has its configuration. Memory that the engine cannot
	// continue from is api.CodeUnsupported if another version of the engine saved it, and api.CodeInternal
	// if its files have changed.
	Memory *Memory
}

// Pool is how many instances like a plan's are kept ready for later plans.
type Pool struct {
	// User shares what is kept ready with others: one of them cannot take it all.
	User string
	// Floor are kept after the first plan of their kind, and Ceiling are never exceeded. With a
	// Ceiling of 0 none are kept, and none are used.
	Floor, Ceiling int
}

// Pooler is an Engine that keeps instances ready. An instance that it keeps has seen no request: it gets
// its name, mounts, rules, network and configuration when a Create takes it.
type Pooler interface {
	PoolCounts() PoolCounts
}

// PoolCounts are the counts of a pool since its engine was made, and what it has now.
type PoolCounts = api.PoolCounts

// Link is one end of a network link: a SOCK_SEQPACKET socket on which each message is an Ethernet
// frame with an IPv4 packet or ARP. Everything that the instance sends, except to its own loopback,
// arrives at the other end, and nothing else does. There is no IPv6. The link ends with the
// instance, and then the other end is hung up.
type Link struct {
	// Guest is the end that the instance gets a duplicate of. The creator of the Plan must close
	// it after Create. Otherwise the end of the instance is not visible at the other end.
	Guest *os.File
	// Far is the other end. The instance holds a duplicate that it does not use. So the link
	// stays up, and drops everything that is sent, when no other process holds this end any more.
	Far *os.File
	// Address is the instance's address in its network. Gateway is the route to everything else.
	Address netip.Prefix
	Gateway netip.Addr
	// MAC and GatewayMAC are fixed, so neither side has to resolve the other.
	MAC, GatewayMAC net.HardwareAddr
	// MTU is the largest IP packet, in bytes.
	MTU int
}

// Root is a root filesystem.
type Root struct {
	// Image is a host path of an EROFS image without inline data.
	Image string
	// ReadOnly gives it no writable layer.
	ReadOnly bool
	// Template is the name of a template that a Remote has, in the place of an Image. Empty is its
	// default one. Other engines get none.
	Template string
	// Upper is a host path of a tar that RootWriter wrote. The writable layer starts with its
	// content. Empty is an empty layer. It was made from the same Image, and is never combined
	// with ReadOnly. The tar is untrusted: only the instance itself reads it.
	Upper string
}

// Mount is a host directory or file that is mounted in the instance, always nosuid and nodev.
type Mount struct {
	// Source is a path that only the caller can change.
	Source   string
	Target   string
	ReadOnly bool
	// Static promises that the mounted files do not change while the instance runs, so the engine
	// can cache them. This is true for the machine's own tools, and not for a user's files. It is
	// only for read-only mounts.
	Static bool
	// OfImage means that the mount is a part of the image, and the same for all instances of the
	// image. Such mounts come first.
	OfImage bool
	// Pinned binds every name in the mount to the file that it was when the sandbox first looked it
	// up, even if another process puts a different file there. What is mounted on a name inside
	// stays there. In return, changes from outside appear late or never.
	Pinned bool
	// Sockets are paths in the mount of unix sockets that the host listens on. A Host whose Terms
	// has CoversSockets shows sockets without a listener in their places, without following
	// links. A socket that no longer exists is skipped, and a file that replaced it may be
	// covered instead. The host can still change the names: a socket that it creates later is not
	// covered. A plan has at most MaxSockets of them.
	Sockets []string
}

// MaxSockets is the maximum number of covered sockets in the mounts of a plan.
const MaxSockets = 128

// Volume is a directory that the engine keeps among its own files. It is empty when it is created,
// and every user inside can write to it.
type Volume struct {
	// Name is the name of a volume that outlives the instance and is created if it is missing.
	// Empty is a volume that is created and removed with the instance.
	Name     string
	Target   string
	ReadOnly bool
	// Source is the path of a directory of this machine that is mounted in place of a volume. Only a
	// Remote whose terms have HostMounts gets it.
	Source string
}

// VolumeKeeper is an Engine whose instances can have volumes. An engine that shares no files with
// this machine is a VolumeKeeper.
type VolumeKeeper interface {
	// RemoveVolume removes a volume with all its content. A missing volume is not an error. A
	// volume that an instance uses is api.CodeState.
	RemoveVolume(ctx context.Context, name string) error
}

// Remote is an Engine whose instances run at a service, on machines and kernels that this one knows
// nothing about. Its Plans have no Mounts, no Link, no Limits and no Image, and their Tmpfs are left to
// the service. Its unnamed Volumes are directories of the root. The agent is started as uid 0, nothing
// keeps root inside from it, and it gets no cgroups.
//
// An instance ends at the latest when the lifetime at the service is over after this process has died.
// For one that dies with its parent, that is a minute at most.
type Remote interface {
	// RemoteTerms does not change during the life of the engine.
	RemoteTerms() RemoteTerms
}

// RemoteTerms are what the creator of a Plan must know about a service.
type RemoteTerms struct {
	// AgentDir is where Agent.Target has to be.
	AgentDir string
	// HostMounts means that the service mounts directories of this machine: a Volume can have a Source.
	HostMounts bool
}

// PathRule is the access to Path, and all below it, in the mount at Target.
type PathRule struct {
	Target string
	Path   string
	Access api.PathAccess
}

// Tmpfs is a memory filesystem.
type Tmpfs struct {
	Target    string
	SizeBytes int64
	Mode      uint32
}

// Limits are limits of the whole instance.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	// Pids limits the processes that the agent starts. The agent and the engine's own processes
	// are not counted. The agent enforces it and gets the value in its configuration. The engine
	// provides what the agent needs for that.
	Pids int64
	// DiskBytes limits the writable layer of the root.
	DiskBytes int64
}

// RootSharer is an Engine whose instances have the machine's own root, such as one for tests. Nothing of it is saved
// when a sandbox is stopped.
type RootSharer interface{ SharesRoot() }

// OneUser describes for people which users the sandboxes of a daemon without root have.
const OneUser = "one, which is the daemon's user: uid 0 inside, and each other user under another number; ranges of /etc/subuid are not used without root"

// Host is an Engine whose instances run on the host's own kernel. On such an engine, some things
// that the agent does itself elsewhere are done differently.
type Host interface {
	// Terms does not change during the life of the engine.
	Terms() Terms
}

// Terms are what the agent must know about its environment on a Host. There it is started as uid 0,
// the kernel protects it as the first process of its namespace, and it must restrict the system
// calls of what it starts.
type Terms struct {
	// SingleUser means that only one ID exists inside: root's.
	SingleUser bool
	// LimitsPids means that the engine enforces Limits.Pids, through the descriptors that the
	// agent puts its processes into.
	LimitsPids bool
	// NoGroups means that there is no cgroup hierarchy for the agent's own groups.
	NoGroups bool
	// KeepsOwners means that the engine mounts a source with its owners unchanged. The caller
	// that stages the source must close off what the sandbox may not access.
	KeepsOwners bool
	// CoversSockets means that Mount.Sockets are covered.
	CoversSockets bool
	// ClosesSockets means that programs cannot reach a socket of the host in any mount.
	ClosesSockets bool
	// CountsAgent means that the engine's limit also counts the agent's own threads. The agent
	// must create the threads that it needs before any other process can.
	CountsAgent bool
}

// Agent says how to start the agent.
//
// The engine starts it with Argv, an environment that is empty or HOME=/, descriptor 3 open for
// reading on Config followed by end of file, and descriptor 4 open for writing. The agent writes
// one byte to descriptor 4 when it listens on TCP 127.0.0.1:Port inside, or a line of text that
// says why it cannot. Descriptors 5 and 6 can be stream sockets: connections that the engine has
// already made and gives to the first two Dials. The agent serves each like an accepted connection,
// and the second one however late its first byte arrives. Descriptors 0 to 2 are /dev/null. The
// agent closes a connection that begins with sixteen line feeds.
//
// Descriptor 5 can be a listening stream socket instead. Then the agent accepts there, and on no
// port. In that case, with a link, descriptors 6 to 8 are open: a tap device and the two ends of
// the link. The agent carries frames between the device and the end on descriptor 7, and only holds
// the one on 8. On the device, ten bytes of a virtio_net_hdr precede each frame. The header of an
// incoming frame says where the packet's checksum is, and that it is not computed yet: nothing
// between the ends of the link can change a byte, so checksums are not verified. Descriptors 9 to
// 12 can be open for writing. Whatever the agent starts writes the byte 0 (a digit) to each of them
// before it executes anything, which puts it into a group.
type Agent struct {
	// Image is a host path of a read-only EROFS image with the program.
	Image string
	// Target is where the engine mounts Image.
	Target string
	// Argv[0] is the path of the program inside the instance.
	Argv []string
	// UID is the uid and gid of the agent inside the instance; 0 is root. It has every capability
	// in any case.
	UID    uint32
	Config []byte
	// Early is the part of Config that an instance may be told before it is known whose it is, if its
	// engine keeps instances ready. Empty tells it nothing.
	Early []byte
	Port  int
}
