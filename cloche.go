// Package cloche is the vocabulary of the project: the wire types that the
// API, the Go client and the CLI share, the ids, and the closed list of error
// codes. It imports only the standard library.
package cloche

// APIVersion is the prefix of every path of the native API.
const APIVersion = "v1"

// Defaults that more than one package needs.
const (
	// DefaultProfile is the profile of a request that names none.
	DefaultProfile = "agent"
	// DefaultImage is the image of a request that names none: a read-only view
	// of the tools of the machine that Cloche runs on.
	DefaultImage = "host"
	// DefaultWorkspacePath is where a workspace is mounted when the request
	// does not say.
	DefaultWorkspacePath = "/workspace"
	// DefaultMaxOutput is how many bytes of each output stream an exec keeps
	// when the request does not say.
	DefaultMaxOutput = 1 << 20
	// MaxMaxOutput is the largest max_output_bytes that a request may ask for.
	MaxMaxOutput = 64 << 20
)
