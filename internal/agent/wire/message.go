package wire

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Version is the protocol that this build speaks, and MinVersion the oldest that
// it still does: a sandbox that the previous release made is still spoken to.
const (
	Version    = 15
	MinVersion = 1
)

// Hello opens a connection.
type Hello struct {
	// Versions are those that the host speaks.
	Versions []int  `json:"versions"`
	Token    []byte `json:"token"`
}

// Welcome answers a Hello whose token was right.
type Welcome struct {
	// Version is the one to speak; 0 without a version in common.
	Version int `json:"version"`
	// Versions are those that the agent speaks.
	Versions []int `json:"versions"`
}

// Versions lists what this build speaks.
func Versions() []int {
	var vs []int
	for v := Version; v >= MinVersion; v-- {
		vs = append(vs, v)
	}
	return vs
}

// Choose returns the first of our versions, newest first, that is also theirs, or 0.
func Choose(ours, theirs []int) int {
	for _, v := range ours {
		if slices.Contains(theirs, v) {
			return v
		}
	}
	return 0
}

// Op is what a stream is for.
type Op string

// The operations.
const (
	OpExec      Op = "exec"   // collected: input follows, then output, then Exit
	OpStream    Op = "stream" // Started, then output and input, then Exit
	OpProcesses Op = "processes"
	OpLogs      Op = "logs"
	OpSignal    Op = "signal"
	OpTerminate Op = "terminate"
	OpStat      Op = "stat"
	OpList      Op = "list"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpMakeDir   Op = "mkdir"
	OpMove      Op = "move"
	OpRemove    Op = "remove"
	OpTarOut    Op = "tar_out"
	OpTarIn     Op = "tar_in"
)

// The operations since version 2.
const (
	OpStart      Op = "start"       // input follows, up to KindEnd; api.Process
	OpWatch      Op = "watch"       // KindProcess frames without end
	OpFollow     Op = "follow"      // KindChunk frames, then KindEnd; KindAck frames come back
	OpStdin      Op = "stdin"       // input follows, up to KindEnd or KindCancel; a KindAck for each frame of it, then StdinReply
	OpCloseStdin Op = "close_stdin" //
	OpResize     Op = "resize"      //
	OpForget     Op = "forget"      // kills the tree and forgets the process
	OpDial       Op = "dial"        // DialReply, then KindData both ways, each way up to KindEnd
	OpHold       Op = "hold"        //
)

// The operations since version 3.
const (
	OpPack     Op = "pack"     // KindData frames, then api.TarReport
	OpUnpack   Op = "unpack"   // data follows, up to KindEnd; api.TarReport
	OpRestrict Op = "restrict" // once, before anything is started
	OpLarge    Op = "large"    // Large
)

// The operations since version 4.
const (
	// OpListen has the agent listen on loopback. Each connection that it takes is a
	// stream that the agent opens: KindIncoming, then KindData both ways, each way up
	// to KindEnd. A stream that ends without is a connection that was reset.
	OpListen   Op = "listen"
	OpUnlisten Op = "unlisten"
)

// OpTool is a file tool of a model's, since version 6. What it answers depends on the
// tool.
const OpTool Op = "tool"

// OpUsage asks what runs inside, since version 8. It answers with a Usage.
const OpUsage Op = "usage"

// OpWatchFiles reports the changes in a directory, since version 9: KindReply frames of an
// api.FileChange, the first of kind api.FileReady, then KindEnd when the directory is gone.
const OpWatchFiles Op = "watch_files"

// OpTree lists the files of one filesystem, since version 10: KindData frames of lines of JSON, each a
// TreeEntry, then KindEnd.
const OpTree Op = "tree"

// OpHostUnpack asks whether the host can unpack a tar at a path in place of the agent, since version 12. It
// answers with a HostUnpack.
const OpHostUnpack Op = "host_unpack"

// OpSuspend has the agent close all connections of its host, this one included, after the answer. Since
// version 13.
const OpSuspend Op = "suspend"

// OpRenew gives a sandbox that continues from saved memory a token and a host name of its own. From then on the
// agent accepts no other token, and has closed every other connection. Since version 14.
const OpRenew Op = "renew"

// OpReattach continues an OpStream whose connection was closed by an OpSuspend with Reattach: a Reattached in a KindStarted
// frame, then as after the start. Since version 15.
const OpReattach Op = "reattach"

// Reattach is what the caller of a streamed exec has received.
type Reattach struct {
	// Stdout and Stderr are bytes of output, Events are its frames.
	Stdout int64  `json:"stdout,omitempty"`
	Stderr int64  `json:"stderr,omitempty"`
	Events uint64 `json:"events,omitempty"`
}

// Reattached is what the program of a streamed exec was given.
type Reattached struct {
	// Input is the number of bytes, Ends the number of KindEnd frames.
	Input int64 `json:"input,omitempty"`
	Ends  int   `json:"ends,omitempty"`
	// Closed: it takes no more.
	Closed bool `json:"closed,omitempty"`
}

// Renew is what an OpRenew sets.
type Renew struct {
	Token []byte `json:"token"`
	// Hostname is set where the kernel allows it; empty leaves it.
	Hostname string `json:"hostname,omitempty"`
}

// HostUnpack answers an OpHostUnpack.
type HostUnpack struct {
	// Allowed: no process inside watches files, and nothing is mounted below the path.
	Allowed bool `json:"allowed"`
	// UID and GID own what is made.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// UnpackJob is what the process gets that unpacks a tar on the host.
type UnpackJob struct {
	// Dir is the directory to unpack in, relative to the one that the process gets.
	Dir api.Bytes `json:"dir"`
	// Name is the path of the same directory inside, for errors.
	Name api.Bytes `json:"name"`
	UID  uint32    `json:"uid"`
	GID  uint32    `json:"gid"`
	Tar  Tar       `json:"tar"`
}

// TreeEntry is a file of an OpTree. A directory comes before what is in it.
type TreeEntry struct {
	// Path is relative to the path of the request.
	Path api.Bytes `json:"path"`
	// Mode, UID, GID, Ino, Dev and Size are those of stat(2). The times are in ns since 1970.
	Mode  uint32 `json:"mode"`
	UID   uint32 `json:"uid,omitempty"`
	GID   uint32 `json:"gid,omitempty"`
	Ino   uint64 `json:"ino"`
	Dev   uint64 `json:"dev"`
	Size  int64  `json:"size,omitempty"`
	Mtime int64  `json:"mtime"`
	Ctime int64  `json:"ctime"`
	// Mount is a directory at which another filesystem is mounted.
	Mount bool `json:"mount,omitempty"`
}

// Usage is what runs inside.
type Usage struct {
	// Processes is how many there are beside the agent.
	Processes int64 `json:"processes"`
	// AgentBytes is the resident set size of the agent. It is 0 if it is not known, and from an agent of
	// an earlier version.
	AgentBytes int64 `json:"agent_bytes,omitempty"`
}

// InputKept is how many of the last bytes of its input are remembered of each
// process: a write that repeats some of them must say the same.
const InputKept = 32 << 10

// Since says with which version of the protocol an operation came.
func (o Op) Since() int {
	switch o {
	case OpStart, OpWatch, OpFollow, OpStdin, OpCloseStdin, OpResize, OpForget, OpDial, OpHold:
		return 2
	case OpPack, OpUnpack, OpRestrict, OpLarge:
		return 3
	case OpListen, OpUnlisten:
		return 4
	case OpTool:
		return 6
	case OpUsage:
		return 8
	case OpWatchFiles:
		return 9
	case OpTree:
		return 10
	case OpHostUnpack:
		return 12
	case OpSuspend:
		return 13
	case OpRenew:
		return 14
	case OpReattach:
		return 15
	}
	return 1
}

// Request is the first frame of a stream. Which fields count depends on Op.
type Request struct {
	Op   Op        `json:"op"`
	Exec *Exec     `json:"exec,omitempty"`
	Logs *Logs     `json:"logs,omitempty"`
	Path api.Bytes `json:"path,omitempty"`
	To   api.Bytes `json:"to,omitempty"`
	User string    `json:"user,omitempty"`
	Mode uint32    `json:"mode,omitempty"`
	// Cursor and Limit page a list.
	Cursor api.Bytes `json:"cursor,omitempty"`
	Limit  int       `json:"limit,omitempty"`
	// Offset and Length are the part of a file to read; a negative Length is the
	// rest of it.
	Offset    int64  `json:"offset,omitempty"`
	Length    int64  `json:"length,omitempty"`
	Parents   bool   `json:"parents,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
	ExecID    string `json:"exec_id,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	GraceMS   int64  `json:"grace_ms,omitempty"`

	// Since version 2.
	Managed *Managed        `json:"managed,omitempty"`
	Follow  *Follow         `json:"follow,omitempty"`
	Scope   api.SignalScope `json:"scope,omitempty"`
	Size    *api.Size       `json:"size,omitempty"`
	Port    int             `json:"port,omitempty"`
	Hold    bool            `json:"hold,omitempty"`
	// Input of an OpStdin that needs no frames; where there is some none follow.
	Input api.Bytes `json:"input,omitempty"`
	// Ended makes an OpForget one of the record alone: nothing is killed, and a
	// process that has not ended is refused.
	Ended bool `json:"ended,omitempty"`

	// Since version 3.
	Tar   *Tar   `json:"tar,omitempty"`
	Rules []Rule `json:"rules,omitempty"`
	// Least is the size from which on a file is large.
	Least int64 `json:"least,omitempty"`

	// Since version 4.
	Listen *Listen `json:"listen,omitempty"`

	// Since version 6.
	Tool *Tool `json:"tool,omitempty"`
	// Forestall is the field of api.SignalRequest. An older agent ignores it.
	Forestall bool `json:"forestall,omitempty"`

	// Entries of an OpWatchFiles adds the file to its changes. Since version 9.
	Entries bool `json:"entries,omitempty"`

	// Beside of an OpWrite has the agent answer first with the file that the content goes to, before it gets
	// its name: what the host has written there itself comes before the frames of data. The answer has no
	// path for what is written in place. Since version BesideSince.
	Beside bool `json:"beside,omitempty"`

	// Since version 14.
	Renew *Renew `json:"renew,omitempty"`

	// Since version 15. In an OpSuspend it has the streamed execs wait for their callers; an older agent ignores it.
	Reattach *Reattach `json:"reattach,omitempty"`

	// Since version PlaceSince, of what concerns a file; an older agent does not know what
	// it would have to heed.
	Place *Place `json:"place,omitempty"`
}

// BesideSince is the version since which a write can have Beside.
const BesideSince = 11

// PlaceSince is the version since which a request for a file can have a Place.
const PlaceSince = 7

// Place says as whom files are used and where, and what came with that.
type Place struct {
	// User is whose rights are used. Without, they are the agent's, and what is made is
	// Request.User's.
	User string `json:"user,omitempty"`
	// Within and ReadWithin are those of api.FileAccess.
	Within     []api.Bytes `json:"within,omitempty"`
	ReadWithin []api.Bytes `json:"read_within,omitempty"`
	// Follow has an OpStat describe what a symlink leads to.
	Follow bool `json:"follow,omitempty"`
	// Exact has an OpMakeDir make that directory alone, which must be new.
	Exact bool `json:"exact,omitempty"`
	// KeepDirs has an OpRemove refuse a directory.
	KeepDirs bool `json:"keep_dirs,omitempty"`
}

// Tool is a file tool; one of the fields is set. Its root is set, and its naming is not.
type Tool struct {
	Read  *api.ToolRead  `json:"read,omitempty"`
	Write *api.ToolWrite `json:"write,omitempty"`
	Edit  *api.ToolEdit  `json:"edit,omitempty"`
	Glob  *api.ToolGlob  `json:"glob,omitempty"`
	Grep  *api.ToolGrep  `json:"grep,omitempty"`
}

// Listen is where to listen inside, for whom.
type Listen struct {
	// ID names the listener. One that exists, with the same port, gives what it takes
	// from now on to the connection on which it is asked for again.
	ID   string `json:"id"`
	Port int    `json:"port"`
	// Socket is the path of a socket to listen at instead, since version 5. It belongs to
	// User, and only User can connect; empty is root, and every user can connect.
	Socket api.Bytes `json:"socket,omitempty"`
	User   string    `json:"user,omitempty"`
	// Outside are directories in which the socket must not be: others see them too.
	Outside []api.Bytes `json:"outside,omitempty"`
	// HTTP says that a client who waits for an answer when the host is gone gets one
	// in HTTP.
	HTTP bool `json:"http,omitempty"`
	// Most bounds its connections.
	Most int `json:"most"`
}

// ListenReply answers an OpListen.
type ListenReply struct {
	Outcome ListenOutcome `json:"outcome"`
}

// ListenOutcome is what became of it.
type ListenOutcome string

// The outcomes.
const (
	ListenBound ListenOutcome = "bound"
	// ListenInUse: something else has the port.
	ListenInUse ListenOutcome = "in_use"
)

// ListenSince is the version since which a listener can be at a socket.
const ListenSince = 5

// Incoming begins a stream that the agent opens.
type Incoming struct {
	// Listener is the id of the one that took the connection.
	Listener string `json:"listener"`
	// Peer is who connected, where that is known. Since version 5.
	Peer *Peer `json:"peer,omitempty"`
}

// Peer is a process inside.
type Peer struct {
	UID uint32 `json:"uid"`
	PID int    `json:"pid"`
}

// Large answers an OpLarge: the largest files, that one first.
type Large struct {
	Files []LargeFile `json:"files"`
	// Partial: there was more to look at than there is time for.
	Partial bool `json:"partial,omitempty"`
}

// LargeFile is one of them.
type LargeFile struct {
	Path api.Bytes `json:"path"`
	Size int64     `json:"size"`
}

// CopyHardLinksSince is the version since which an OpPack makes copies of hard links.
const CopyHardLinksSince = 8

// TarOnlySince is the version since which an OpPack can name what it packs.
const TarOnlySince = 10

// Tar says how an OpPack or OpUnpack goes about it. Paths are relative and clean.
type Tar struct {
	Exclude   []api.Bytes `json:"exclude,omitempty"`
	KeepLinks bool        `json:"keep_links,omitempty"`
	// CopyHardLinks is the field of api.TarOutOptions, since version CopyHardLinksSince.
	CopyHardLinks bool `json:"copy_hard_links,omitempty"`
	// Only has an OpPack pack these alone: of a directory, the entry without what is in it. Since
	// version TarOnlySince.
	Only []api.Bytes `json:"only,omitempty"`
	// The rest is for OpUnpack. KeepOwner takes the archive's owners, not Request.User.
	KeepOwner bool              `json:"keep_owner,omitempty"`
	Atomic    bool              `json:"atomic,omitempty"`
	Clear     bool              `json:"clear,omitempty"`
	Keep      []api.Bytes       `json:"keep,omitempty"`
	Links     api.ExternalLinks `json:"links,omitempty"`
}

// Rule is the access to one path of a mount. Those of one mount come in an order
// in which what is above comes first.
type Rule struct {
	// Name is how the caller knows it, such as "mounts[0].rules[1]".
	Name string `json:"name"`
	// Target is where the mount is, Path what is below it.
	Target api.Bytes      `json:"target"`
	Path   api.Bytes      `json:"path"`
	Access api.PathAccess `json:"access"`
	// Make makes a directory where nothing is.
	Make bool `json:"make,omitempty"`
}

// Managed is what an OpStart says beside the program.
type Managed struct {
	Name      string         `json:"name,omitempty"`
	OpenStdin bool           `json:"open_stdin,omitempty"`
	Restart   *api.Restart   `json:"restart,omitempty"`
	Ready     *api.Readiness `json:"ready,omitempty"`
	OnFull    api.OnFull     `json:"on_full,omitempty"`
	// RestoreSignal is the number of the signal that the process gets at an [OpRenew]; 0 means no signal.
	RestoreSignal int `json:"restore_signal,omitempty"`
}

// Follow chooses what an OpFollow sends.
type Follow struct {
	Since   int64 `json:"since"`
	Follow  bool  `json:"follow,omitempty"`
	Primary bool  `json:"primary,omitempty"`
}

// Ack says up to where the host has taken over a followed output, or the process
// its input.
type Ack struct {
	Position int64 `json:"position"`
}

// StdinReply says what became of input. A Fail in it comes with the offset up to
// which the process was given input nevertheless.
type StdinReply struct {
	Offset int64      `json:"offset"`
	Fail   *api.Error `json:"fail,omitempty"`
}

// DialOutcome is what became of a dial.
type DialOutcome string

// The outcomes.
const (
	DialOpen    DialOutcome = "open"
	DialRefused DialOutcome = "refused" // nothing listens
	DialOwn     DialOutcome = "own"     // the agent listens there, which callers may not reach
)

// DialReply answers an OpDial.
type DialReply struct {
	Outcome DialOutcome `json:"outcome"`
}

// Exec is a program to run.
type Exec struct {
	ID        string      `json:"id"`
	Argv      []api.Bytes `json:"argv"`
	Env       []api.Bytes `json:"env,omitempty"`
	Cwd       api.Bytes   `json:"cwd,omitempty"`
	User      string      `json:"user,omitempty"`
	TimeoutMS int64       `json:"timeout_ms,omitempty"`
	MaxOutput int64       `json:"max_output,omitempty"`
	Combined  bool        `json:"combined,omitempty"`
	TTY       bool        `json:"tty,omitempty"`
	Rows      uint16      `json:"rows,omitempty"`
	Cols      uint16      `json:"cols,omitempty"`
	// Input: KindInput frames follow, closed by KindEnd.
	Input bool `json:"input,omitempty"`
	// Key is the same for requests that are the same, and for no others. A request
	// with the id and the key of one before is that one, asked for again. It
	// counts since version 2; empty is never the same.
	Key string `json:"key,omitempty"`
	// Brief: the result is asked for again only if a save has closed the connection. An older agent keeps it as long as others.
	Brief bool `json:"brief,omitempty"`
}

// Logs choose from the rings.
type Logs struct {
	ExecID string     `json:"exec_id,omitempty"`
	Stream api.Stream `json:"stream,omitempty"`
	Tail   int        `json:"tail,omitempty"`
}

// Signal is sent to the process group of a stream's program.
type Signal struct {
	Number int `json:"number"`
}

// FileReply answers what concerns one file.
type FileReply struct {
	Info api.FileInfo `json:"info"`
	// Path is where the file is, in the first answer to a write with Beside.
	Path api.Bytes `json:"path,omitempty"`
}

// Empty is an answer without data.
type Empty struct{}
