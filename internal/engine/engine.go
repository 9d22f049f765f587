// Package engine is the contract between Cloche and what isolates a
// sandbox. An engine does one thing: it makes an isolated place from a Plan,
// starts the agent in it and hands back a stream to it. All else is done by the
// agent, so it is the same on every engine.
package engine

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Engine isolates sandboxes. Implementations are safe for concurrent use. Every
// sentence of these comments is proved by package enginetest.
type Engine interface {
	// Name is what requests call it.
	Name() string
	// Probe says what this engine can do on this machine now. It changes nothing
	// and leaves nothing behind.
	Probe(ctx context.Context) Report
	// Create makes the place, starts the agent as its first process and returns
	// when the agent listens. On error nothing is left behind.
	Create(ctx context.Context, p Plan) (Instance, error)
	// Recover finds an instance again from its State, in this process or a later
	// one, and costs no more than looking: it starts nothing and asks nothing
	// inside. A dead instance is api.CodeNotFound, after what was left of it is
	// gone; one from before the machine's last boot is dead, whoever has its number
	// now. The State may be one that an earlier build made. Where that could do
	// more harm than good, what the instance cannot do any more is
	// api.CodeUnsupported; Dial, Done and Close always work.
	Recover(ctx context.Context, state []byte) (Instance, error)
	// Sweep removes every instance of owner whose id keep does not report, with all
	// that belongs to it, and nothing of any other owner. A nil keep keeps none.
	// Instances that are kept may be made, used and closed meanwhile.
	Sweep(ctx context.Context, owner string, keep func(id string) bool) error
}

// Keeps reports whether a Sweep leaves an instance alone.
func Keeps(keep func(id string) bool, id string) bool { return keep != nil && keep(id) }

// Instance is one isolated place.
type Instance interface {
	// State is what Recover needs. It is opaque, holds no secret, and does not
	// change over the instance's life.
	State() []byte
	// Dial opens a new stream to the agent. It authenticates nothing: the caller
	// does, with the token it put in the agent's configuration. One that may keep
	// bytes until more come has a method HoldsBack, and is nudged.
	Dial(ctx context.Context) (net.Conn, error)
	// Done is closed when the instance has died, by whatever cause.
	Done() <-chan struct{}
	// Close kills every process and removes all that Create made. It is
	// idempotent and needs no help from inside. Close of a dead instance cleans up.
	Close(ctx context.Context) error
}

// CloseError is the cause of an error of Close that can say what is left because of
// it. Where that is not the processes, no process is left.
type CloseError struct {
	Kind api.ResourceKind
	Err  error
}

// Error implements error.
func (e *CloseError) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *CloseError) Unwrap() error { return e.Err }

// Statter is an Instance that can say what it uses.
type Statter interface {
	Stat(ctx context.Context) (Stat, error)
}

// FileHolder is an Instance that can say which processes of this machine may hold files of
// its mounts open: a file that has no name any more is found only there.
type FileHolder interface {
	FileHolders(ctx context.Context) (pids []int, err error)
}

// Stoppable is an Instance that can say which of its processes on this machine are stopped.
type Stoppable interface {
	// Stopped names the instance's own processes that a signal or a debugger has stopped,
	// such as "sentry". It looks at them, and asks none. A paused instance has none.
	Stopped() []string
}

// Mortal is an Instance that can say how it ended.
type Mortal interface {
	// Ending is what was seen of the end. It is for after Done.
	Ending() Ending
}

// Ending is what was seen of the end of an instance.
type Ending struct {
	// How is a clause that says how the instance ended, such as "its agent was killed
	// by signal KILL"; empty when nobody saw it. It names nothing of the host.
	How string
	// LastWords are what the engine's own program said in the end, bounded. They are
	// for the operator alone.
	LastWords string
}

// Pauser is an Instance that can be made to stand still.
type Pauser interface {
	// Pause makes every process stand still, with all it has in memory, and
	// returns when they do. From then on the instance uses no processor, and what
	// is sent on a stream that is open waits; a Dial is api.CodeState. That it
	// is paused is known to the machine and not to this process: it stays so when
	// the caller dies, and a recovered instance is as paused as it was. A paused
	// instance can be closed, and one that is paused already is no error. On any
	// other error it goes on as before, unless it is dead: then the error is
	// api.CodeSandboxLost. A machine or an instance that cannot do it is
	// api.CodeUnsupported.
	Pause(ctx context.Context) error
	// Resume lets the processes go on where they stood; one that was not paused is
	// no error. Clocks inside have gone on meanwhile.
	Resume(ctx context.Context) error
}

// RootWriter is an Instance that can show what was changed in its root.
type RootWriter interface {
	// WriteRoot writes to w, as a tar, the writable layer of the root: what was
	// added and changed as it is now, and a character device 0:0 in the place of
	// what was removed; a directory with the extended attribute
	// trusted.overlay.opaque hides all that the image has there. From before the
	// first byte until it returns every process stands still, so that the tar is of
	// one moment; meanwhile, which may be nil, is called in that time, before the
	// root is written. Then the processes go on, also after an error. When the caller
	// dies on the way the instance is as one that is paused: Resume lets it go on. An
	// instance whose pause keeps it from answering is api.CodeState. An error of w
	// or of meanwhile ends it and is returned as it is. The tar holds no sockets and
	// no extended attributes that are not text.
	WriteRoot(ctx context.Context, w io.Writer, meanwhile func(context.Context) error) error
	// HoldsFiles is true when WriteRoot has each file whole in the instance's memory
	// for a moment, so that one which is too large ends the instance.
	HoldsFiles() bool
}

// Refuser is an Instance whose kernel says what rules on paths refused. To the
// program that it refuses it answers EACCES.
type Refuser interface {
	// Refusals calls fn with what the rules of the Plan refused to programs since
	// Create, in order, and returns when the instance has ended and all is told, or
	// with the error of ctx. What was refused while nobody listened, by this process
	// or an earlier one, is told too, or the number of it: every refusal is, once. It
	// is for one caller at a time. What the agent was refused is not told.
	Refusals(ctx context.Context, fn func(Refusal)) error
}

// Refusal is what a rule on a path refused to a program. All of it comes from
// inside the instance, and is bounded.
type Refusal struct {
	// Rule is the number of the rule in the Plan; -1 is none, when there is nothing
	// to tell but how many more there were.
	Rule int
	// Op is what was tried: "open", "rename".
	Op string
	// Path is relative to the rule's mount.
	Path string
	// Program is what the program calls itself, and UID its user inside.
	Program string
	UID     uint32
	// Missed is how many refusals before this one are not told.
	Missed int64
}

// Untold is an error's cause: so many refusals of an instance that is dead were
// told to nobody.
type Untold int64

// Error implements error.
func (n Untold) Error() string {
	return strconv.FormatInt(int64(n), 10) + " refusals were not reported"
}

// Stat is what an instance uses now.
type Stat struct {
	// MemoryBytes is what the kernel charges the whole instance.
	MemoryBytes int64
	// CPU is processor time used since Create.
	CPU time.Duration
	// OOMKills counts kills for memory since Create; it never falls.
	OOMKills int64
}

// Report is what Probe finds: the same that a doctor shows.
type Report = api.EngineReport

// Plan is all that an engine needs: host paths and numbers, nothing left to
// decide. Whoever made it owns the paths: those of Mounts are valid until Create
// returns, the others until Close.
type Plan struct {
	// ID is unique under Owner and safe as a file name.
	ID string
	// Owner names the daemon (or in-process run) that the instance belongs to;
	// it is safe as a file name.
	Owner string
	// Dir is an empty 0700 directory for the engine's own files. The caller
	// removes it after Close.
	Dir string
	// Hostname is what the sandbox calls itself.
	Hostname string
	// Root is the root filesystem.
	Root Root
	// Mounts are directories (or files) of the host, in order of mounting.
	Mounts []Mount
	// Rules are the rules on paths that the agent is going to put in force: for an
	// engine that can say what they refuse (Refuser). It enforces none of them.
	Rules []PathRule
	// Volumes are what an engine keeps that is a VolumeKeeper; for any other it has none.
	Volumes []Volume
	// Tmpfs are memory filesystems, each with a size.
	Tmpfs []Tmpfs
	// Limits are to be enforced; zero is none. What an engine's Report says it
	// cannot enforce is never in a Plan.
	Limits Limits
	// Agent is the first process.
	Agent Agent
	// Link is the network; nil gives the instance a loopback device and nothing
	// else. An engine whose Report does not enforce "egress" refuses it with
	// api.CodeUnsupported.
	Link *Link
	// DieWithParent makes the kernel kill the instance when the calling process
	// dies. Otherwise it lives on.
	DieWithParent bool
}

// Link is one end of a network link: a socket of the type SOCK_SEQPACKET, each of
// whose messages is an Ethernet frame with an IPv4 packet or ARP in it. What the
// instance sends anywhere but to its own loopback comes out of the other end, and
// nothing else does. There is no IPv6 on it. The link ends with the instance: then
// the other end is hung up.
type Link struct {
	// Guest is the end that the instance gets a duplicate of. Who made the Plan closes
	// it after Create, or the end of the instance cannot be seen on the other.
	Guest *os.File
	// Far is the other end. The instance holds a duplicate, which it does not use: so
	// the link stands, and loses all that is sent, when nobody else holds it any more.
	Far *os.File
	// Address is the instance's in its network, Gateway the route to everything else.
	Address netip.Prefix
	Gateway netip.Addr
	// MAC and GatewayMAC are fixed, so neither side has to ask.
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
	// Upper is a host path of a tar that RootWriter wrote, with which the writable
	// layer begins; empty is an empty layer. It was made of the same Image, and
	// never goes with ReadOnly. It is foreign: only the instance itself reads it.
	Upper string
}

// Mount is a host directory or file, seen inside, always nosuid and nodev.
type Mount struct {
	// Source is a path nobody but the caller can change.
	Source   string
	Target   string
	ReadOnly bool
	// Static promises that nobody changes what is mounted while the instance
	// lives, so that the engine may keep what it has seen: the machine's own tools
	// are, a user's files are not. Only for read-only mounts.
	Static bool
	// Held keeps every name in the mount for what it was when the sandbox looked
	// it up first, whatever somebody else puts there: what is mounted on a name
	// inside stays there. The price is that changes from outside are seen late or
	// never.
	Held bool
	// Sockets are paths in the mount of unix sockets that the host listens on. A Host
	// that Terms says covers them shows sockets in their places that nobody listens on,
	// without following links. One that is gone by then is passed over; a file that has
	// come in its place may be covered instead. The names stay the host's to change: a
	// socket that it makes anew is not covered. There are at most MaxSockets in a plan.
	Sockets []string
}

// MaxSockets is the most sockets that are covered in the mounts of a plan.
const MaxSockets = 128

// Volume is a directory that lies where the engine has its files. It is empty when it
// is made, and then everybody inside may write to it.
type Volume struct {
	// Name is that of one that outlives the instance, and is made when it is missing;
	// empty is one that is made with the instance and goes with it.
	Name     string
	Target   string
	ReadOnly bool
}

// VolumeKeeper is an Engine whose instances can have volumes. One that shares no files
// with this machine is one.
type VolumeKeeper interface {
	// RemoveVolume removes a volume with all that is in it; one that is missing is no
	// error, and one that an instance has is api.CodeState.
	RemoveVolume(ctx context.Context, name string) error
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

// Limits are enforced on the instance as a whole.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	// Pids is for the processes that the agent starts; the agent and the engine's
	// own processes are not counted. It is enforced by the agent, which is given
	// it in its configuration; the engine provides what the agent needs for that.
	Pids int64
	// DiskBytes bounds the writable layer of the root.
	DiskBytes int64
}

// OneUser says for people which users sandboxes of a daemon without root have.
const OneUser = "one, which is the daemon's user: uid 0 inside, and each other user under another number; ranges of /etc/subuid are not used without root"

// Host is an Engine whose instances run on the host's own kernel: what the agent does
// by itself elsewhere is done otherwise there.
type Host interface {
	// Terms are the same for as long as the engine lives.
	Terms() Terms
}

// Terms are what an agent has to know of the place that it is going to be in. With
// them it is started as uid 0, is guarded by the kernel as the first process of its
// namespace, and must keep from the kernel what it starts.
type Terms struct {
	// SingleUser says that there is one id inside, which is root's.
	SingleUser bool
	// LimitsPids says that the engine enforces Limits.Pids, by the descriptors that
	// the agent puts its processes into.
	LimitsPids bool
	// NoGroups says that there is no cgroup hierarchy for the agent's own groups.
	NoGroups bool
	// KeepsOwners says that the engine mounts a source with the owners that it shows, as
	// it is: what is to be closed in it, whoever stages it closes.
	KeepsOwners bool
	// CoversSockets says that Mount.Sockets are covered.
	CoversSockets bool
	// ClosesSockets says that programs reach no socket of the host in any mount.
	ClosesSockets bool
	// CountsAgent says that the engine's limit counts the agent's own threads too: it
	// has to make those that it needs before anybody else can.
	CountsAgent bool
}

// Agent is how to start the agent.
//
// It is started with Argv, an environment that is empty or HOME=/, descriptor 3 open for reading
// on Config followed by end of file, and descriptor 4 open for writing. It
// writes one byte to descriptor 4 when it listens on TCP 127.0.0.1:Port inside,
// or a line of text that says why it cannot. Descriptors 5 and 6 may be stream
// sockets: connections that the engine has made already and gives to the first two
// Dials; the agent serves each as one that it accepted, and the second however
// late its first byte comes. Descriptors 0 to 2 are /dev/null. A connection that
// begins with sixteen line feeds it closes.
//
// Descriptor 5 may be a listening stream socket instead: then the agent accepts
// there, and on no port. Descriptors 6 to 8 are open then where there is a link: a
// tap device and the link's two ends. The agent carries frames between the device and
// the end on descriptor 7; the one on 8 it only holds. On the device each frame is
// behind the ten bytes of a virtio_net_hdr. That of one that goes in says where the sum
// of its packet would be, and that it is still to be made: nothing between the link's
// ends can change a byte, so no sum is looked at. Descriptors 9 to 12 may be
// open for writing: what the agent starts writes the byte 0 (a digit) to each of them
// before it executes anything, which puts it into a group.
type Agent struct {
	// Image is a host path of a read-only EROFS image that holds the program.
	Image string
	// Target is where the engine mounts Image.
	Target string
	// Argv[0] is the program's path inside.
	Argv []string
	// UID is the uid and the gid that it is started as inside, with every
	// capability whatever they are; 0 is root.
	UID    uint32
	Config []byte
	Port   int
}
