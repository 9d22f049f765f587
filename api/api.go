// Package api defines the types of Cloche's API, which the HTTP API, the Go client, the CLI and the
// daemon exchange. It imports only the standard library.
//
// A sandbox runs code that its owner does not trust. It has a root filesystem from an image, a
// workspace for the caller's files, limits, and no network unless rules allow it. A [SandboxSpec]
// describes the sandbox to create, and a [Sandbox] is the record of what the daemon created. An
// [ExecRequest] runs one program in a sandbox and returns a [Result]. A [Process] is a program that
// keeps running after the call that started it.
//
// Package client sends these types to a daemon:
//
//	c, err := client.New(client.Options{})
//	if err != nil {
//		return err
//	}
//	sb, err := c.Create(ctx, api.SandboxSpec{})
//	if err != nil {
//		return err
//	}
//	defer c.Remove(context.WithoutCancel(ctx), sb.ID)
//	result, err := c.Exec(ctx, sb.ID, api.ExecRequest{Python: "print(6*7)"})
//
// Every error of the API is an [Error] with a [Code] from a closed list. Its message says what is
// wrong, and its hint says what to do. A program that runs and fails is not an error: the Result
// has its exit status.
//
// Sizes are in bytes and times in milliseconds unless the field name says otherwise. IDs start with
// their kind, such as sb- for a sandbox. openapi/openapi.yaml describes the same types for other
// languages, and a test compares the two.
package api

// APIVersion is the prefix of every path of the native API.
const APIVersion = "v1"

// Defaults that more than one package uses.
const (
	// DefaultProfile is the profile of a request that does not name one.
	DefaultProfile = "agent"
	// DefaultImage is the image of a request that does not name one. It is a read-only view of
	// the tools installed on the machine that runs Cloche.
	DefaultImage = "host"
	// DefaultWorkspacePath is the mount path of a workspace when the request does not set one.
	DefaultWorkspacePath = "/workspace"
	// DefaultMaxOutput is the number of bytes of each output stream that an exec keeps by
	// default.
	DefaultMaxOutput = 1 << 20
	// MaxMaxOutput is the largest max_output_bytes that a request can set.
	MaxMaxOutput = 64 << 20
)
