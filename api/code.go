package api

import (
	"encoding/json"
	"time"
)

// CodeContextSpec creates a code context: a Jupyter kernel in a sandbox, which keeps its variables
// from one run of code to the next. The kernel is a managed process, so policy decides about it as
// about any process. The image must have Jupyter: for Python the package ipykernel, for another
// language its kernel and the Python package jupyter_client.
type CodeContextSpec struct {
	// ID is its ID in the sandbox (see ValidName, and at most 48 characters). If it is empty, the
	// server chooses one. A create that repeats an ID with the same spec returns the existing context.
	ID string `json:"id,omitempty"`
	// Language is a language or the name of a kernel. Empty is "python".
	Language string `json:"language,omitempty"`
	// Cwd is an absolute path. Empty is the sandbox's working directory.
	Cwd string `json:"cwd,omitempty"`
	// Env is added to the sandbox's environment and takes precedence.
	Env map[string]string `json:"env,omitempty"`
	// User overrides the sandbox's user.
	User string `json:"user,omitempty"`
}

// CodeContext is a code context of a sandbox.
type CodeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd,omitempty"`
	// ExecID is the ID of its process.
	ExecID string `json:"exec_id"`
	// State is the state of its process.
	State     ProcessState `json:"state"`
	StartedAt time.Time    `json:"started_at"`
}

// CodeContextList lists the code contexts of one sandbox in the order of their start.
type CodeContextList struct {
	Contexts []CodeContext `json:"contexts"`
}

// CodeRequest runs code in a context. One context runs one code at a time; others wait.
type CodeRequest struct {
	Code string `json:"code"`
	// Context is the ID of a context. Empty is the default context of Language, which is created by
	// the first run. Only one of Context and Language is set.
	Context  string `json:"context,omitempty"`
	Language string `json:"language,omitempty"`
	// Env is set for this run only. It is only for Python.
	Env map[string]string `json:"env,omitempty"`
	// TimeoutMS is the time after which the run is interrupted. Nil is the sandbox's limit of an
	// exec. 0 is unlimited, if the profile allows it.
	TimeoutMS *int64 `json:"timeout_ms,omitempty"`
}

// CodeEventType is the type of an event of a run.
type CodeEventType string

// Types of events.
const (
	// CodeStarted is the first event: the context has begun the run.
	CodeStarted CodeEventType = "started"
	CodeStdout  CodeEventType = "stdout"
	CodeStderr  CodeEventType = "stderr"
	// CodeResult is the value of the last expression, or something that the code displays.
	CodeResult CodeEventType = "result"
	// CodeError is an exception of the code, or the failure of its kernel.
	CodeError CodeEventType = "error"
	// CodeEnd is the last event.
	CodeEnd CodeEventType = "end"
)

// MIME types of CodeEvent.Data that Cloche adds to Python's own.
const (
	// MIMEChart is the data of a matplotlib figure: its type, title, axes and elements.
	MIMEChart = "application/vnd.cloche.chart+json"
	// MIMETable is the data of a pandas DataFrame: the values of each column, by its name.
	MIMETable = "application/vnd.cloche.table+json"
)

// CodeEvent is one event of a run.
type CodeEvent struct {
	Type CodeEventType `json:"type"`
	// Text is output.
	Text string `json:"text,omitempty"`
	// Main is set for the value of the last expression.
	Main bool `json:"main,omitempty"`
	// Data is a result in several formats, by MIME type. Text formats are strings, pictures are
	// strings in base64, and JSON formats are objects.
	Data map[string]json.RawMessage `json:"data,omitempty"`
	// Name, Value and Traceback describe an error. The kernel's own failures have the names
	// KernelDied, KernelHangs, ContextRestarting and TimeoutError.
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	// Status of an end is ok, error, timeout, restarted or died. ExecutionCount is the number of the
	// run in its kernel. Truncated means that events were dropped, because the run had more than 64
	// MiB of them or one had more than 12 MiB.
	Status         string `json:"status,omitempty"`
	ExecutionCount int    `json:"execution_count,omitempty"`
	Truncated      bool   `json:"truncated,omitempty"`
}
