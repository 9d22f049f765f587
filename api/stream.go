package api

// The streamed exec sends these messages over a WebSocket, one message per frame. Text frames hold
// ClientMessage and ServerMessage as JSON. Binary frames hold bytes. From the client, they are
// stdin. From the server, they are one byte (1 for stdout, 2 for stderr), an eight-byte sequence
// number (big endian) and the output. Sequence numbers count the output frames of both streams
// together from 0, in the order in which the agent read them.
//
// An attach to a process uses the same messages, but the number in an output frame is the position
// of its first byte (see LogEntry.Position).

// ClientMessage is a text frame to the server. The first frame of a stream is a ClientMessage with
// Exec, Run, Attach or Hold.
type ClientMessage struct {
	Exec *ExecRequest `json:"exec,omitempty"`
	Run  *RunRequest  `json:"run,omitempty"`
	// Attach is the first frame of an attach.
	Attach *AttachRequest `json:"attach,omitempty"`
	// Hold is the first frame of a stream that holds a transient sandbox.
	Hold *SandboxSpec `json:"hold,omitempty"`
	// Signal is the name of a signal for the program's process group.
	Signal string `json:"signal,omitempty"`
	// Resize changes the terminal.
	Resize *Size `json:"resize,omitempty"`
	// CloseStdin closes the program's input.
	CloseStdin bool `json:"close_stdin,omitempty"`
}

// Size is the size of a terminal in character cells.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ServerMessage is a text frame to the client. A stream ends with Exit or Error. After that the
// server closes the connection.
type ServerMessage struct {
	// Step is the progress of a create, such as "image" or "engine".
	Step string `json:"step,omitempty"`
	// Pull is the progress of pulling the image of a create, or of the requested pull.
	Pull *PullProgress `json:"pull,omitempty"`
	// Image is the last message of a pull, an import or a build.
	Image *Image `json:"image,omitempty"`
	// Sandbox is sent once by a run, when the sandbox is ready.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// Started is sent once, when the program has been executed or the client is attached.
	Started *Started `json:"started,omitempty"`
	// Gap means that output is missing before the next frame.
	Gap *Gap `json:"gap,omitempty"`
	// Stdin acknowledges input of an attach that was written to the process.
	Stdin *StdinAck `json:"stdin,omitempty"`
	// Process is the record of an attached process. It is sent whenever the state changes.
	Process *Process `json:"process,omitempty"`
	// Exit is the result without the streamed output.
	Exit  *Result `json:"exit,omitempty"`
	Error *Error  `json:"error,omitempty"`
}

// Started means that the program has been executed.
type Started struct {
	ExecID string `json:"exec_id"`
	// Position is where the output of an attach begins. StdinOffset is where its input begins.
	Position    int64 `json:"position,omitempty"`
	StdinOffset int64 `json:"stdin_offset,omitempty"`
}

// Gap is output that is no longer kept: the given number of Bytes before Position.
type Gap struct {
	Position int64 `json:"position"`
	Bytes    int64 `json:"bytes"`
}

// Values of the stream byte of an output frame.
const (
	FrameStdout byte = 1
	FrameStderr byte = 2
	// FrameHeaderLen is the length of the header before the output.
	FrameHeaderLen = 9
)
