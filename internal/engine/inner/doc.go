// Package inner runs in an instance beside the agent, on engines that start it through another
// program: a Docker daemon, or the service of a remote engine. It becomes the agent with what the agent
// is promised, and it joins streams of the host to the address that the agent listens at.
package inner

// Argv0 is the name under which this program is started inside. An agent whose first argument it is
// plays these roles too.
const Argv0 = "cloche-inner"

// The roles, each the first argument.
const (
	// Start is followed by a user's number, the agent's port if the agent is to have a
	// network link and 0 if not, a number of directories and so many, and the command
	// line of the agent. A directory that is empty is opened to everybody inside. On
	// standard input come four bytes, the length of the agent's configuration with the
	// highest first, and the configuration. What the agent writes when it listens, or
	// a line that says why it was not started, goes to standard output.
	Start = "start"
	// Serve is Start for an agent that accepts at a unix socket, whose path is in the place of the
	// port. The socket and its directory, mode 0700, are made, and so are the directories that are
	// missing.
	Serve = "serve"
	// Dial is followed by the agent's port, or by the path of its socket. Standard input and output
	// are one stream that is shared by connections to it; each begins with the byte Connected, or
	// ends without one.
	Dial = "dial"
)

// Connected is the first byte of a stream whose connection was made.
const Connected = 1

// Meeting is the name of a socket, of the kind that keeps messages apart, in the
// network namespace of a container whose agent is to have a link: there the host
// waits for this program, and gives it one message with the byte Connected and
// MeetingFiles descriptors: a device and the link's two ends.
const (
	Meeting      = "@cloche-link"
	MeetingFiles = 3
)

// MaxConfig bounds the agent's configuration: what a pipe takes at once.
const MaxConfig = 64 << 10
