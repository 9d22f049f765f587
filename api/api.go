// Package api has the types of Cloche's API: what the HTTP API, the Go client, the CLI and the
// daemon exchange. It imports the standard library only.
//
// A sandbox is a place for code that its owner does not trust. It has a root filesystem from an
// image, a workspace for the caller's files, limits, and no network unless rules give it one. A
// [SandboxSpec] describes it, and a [Sandbox] is what the daemon made of the description. An
// [ExecRequest] runs one program in a sandbox and ends with a [Result]. A [Process] is a program
// that outlives the call that started it.
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
// Every error of the API is an [Error] with one of a closed list of [Code] values. Its message
// says what is wrong, its hint what to do about it. A program that ran and failed is no error: its
// exit status is in the Result.
//
// Sizes are in bytes and times in milliseconds unless the name of a field says otherwise. Ids
// begin with their kind, as sb- for a sandbox. openapi/openapi.yaml describes the same types
// for other languages; a test compares the two.
package api

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
