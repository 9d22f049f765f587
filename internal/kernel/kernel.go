// Package kernel runs code in Jupyter kernels. Each kernel is a managed process of a sandbox: a bridge
// program in the Python of the image, with the kernel as its child. The bridge listens at a loopback port
// of the sandbox, and the kernel's own sockets are files that only the user of the bridge can read.
package kernel

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

//go:embed bridge.py
var bridge string

//go:embed setup.py
var setup string

const (
	// processPrefix begins the IDs of the processes of contexts.
	processPrefix = "code-"
	// maxID limits the ID of a context in bytes, so that the ID of the process is valid.
	maxID = 48
	// boot reads the bridge from stdin, so that lists of processes stay short.
	boot = "import sys; exec(compile(sys.stdin.read(), 'cloche-kernel', 'exec'))"
	// maxLine limits a line of the bridge in bytes. The bridge's own limits are lower.
	maxLine = 14 << 20
	// Python is the default language.
	Python = "python"
)

// languages are other names of languages.
var languages = map[string]string{"": Python, "py": Python, "python3": Python, "js": "javascript", "ts": "typescript"}

// Language returns the usual name of a language.
func Language(name string) string {
	name = strings.ToLower(name)
	if usual, ok := languages[name]; ok {
		return usual
	}
	return name
}

// Process returns the process of a context. Without an ID the context gets one.
func Process(spec api.CodeContextSpec) (api.ProcessSpec, error) {
	language := Language(spec.Language)
	switch {
	case !api.ValidName(language):
		return api.ProcessSpec{}, api.Invalid("language", "%.40q is not the name of a language", spec.Language)
	case spec.ID != "" && (!api.ValidName(spec.ID) || len(spec.ID) > maxID):
		return api.ProcessSpec{}, api.Invalid("id", "%.60q cannot be the ID of a context", spec.ID).WithHint("use at most %d lower-case letters, digits and -", maxID)
	}
	id := cmp.Or(spec.ID, api.NewID("cx-"))
	settings, err := json.Marshal(setup)
	if err != nil {
		return api.ProcessSpec{}, err
	}
	return api.ProcessSpec{
		Name: "code context " + id,
		ExecRequest: api.ExecRequest{
			ExecID: processPrefix + id, Argv: []string{"python3", "-u", "-c", boot, language, spec.Cwd}, Cwd: spec.Cwd, Env: spec.Env, User: spec.User,
			Stdin: api.Bytes("SETUP = " + string(settings) + "\n" + bridge),
		},
	}, nil
}

// ProcessID returns the ID of the process of a context.
func ProcessID(id string) string { return processPrefix + id }

// Context returns the context of a process, if it is one of a context.
func Context(p api.Process) (api.CodeContext, bool) {
	id, ok := strings.CutPrefix(p.ExecID, processPrefix)
	if !ok || len(p.Argv) != 6 || p.Argv[3] != boot {
		return api.CodeContext{}, false
	}
	return api.CodeContext{ID: id, Language: p.Argv[4], Cwd: p.Argv[5], ExecID: p.ExecID, State: p.State, StartedAt: p.StartedAt}, true
}

// Bridge is where the bridge of a context listens.
type Bridge struct {
	// Port is a port of the sandbox's loopback interface.
	Port int `json:"port"`
	// Token is what each connection shows.
	Token string `json:"token"`
}

// Parse reads the first line of a bridge, which says where it listens or why it has no kernel.
func Parse(line []byte, language string) (Bridge, error) {
	var said struct {
		Bridge
		Failed, Message string
		Languages       []string
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return Bridge{}, api.Errorf(api.CodeUnavailable, "the code context did not start: its program wrote %.200q", line)
	}
	switch said.Failed {
	case "":
	case "no_jupyter":
		return Bridge{}, api.Errorf(api.CodeUnsupported, "%.500s", said.Message).WithHint("use an image with ipykernel, such as one made by `pip install ipykernel`")
	case "no_kernel":
		hint := "the image has no kernels: `pip install ipykernel` adds one for Python"
		if len(said.Languages) > 0 {
			hint = clip("its kernels are for "+strings.Join(said.Languages, ", "), 500)
		}
		return Bridge{}, api.Errorf(api.CodeUnsupported, "the image has no Jupyter kernel for %s", language).WithHint("%s", hint)
	default:
		return Bridge{}, api.Errorf(api.CodeUnavailable, "the code context did not start: %.500s", said.Message)
	}
	if said.Port < 1 || said.Port > 65535 || said.Token == "" {
		return Bridge{}, api.Errorf(api.CodeUnavailable, "the code context did not start: its program wrote %.200q", line)
	}
	return said.Bridge, nil
}

func clip(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "?") }

// Run runs code and calls fn with its events, which a program in the sandbox can forge. The last has the
// type api.CodeEnd. The end of ctx closes conn, and the bridge then interrupts the run. A timeout of 0 is
// unlimited. Run closes conn.
func (b Bridge) Run(ctx context.Context, conn net.Conn, code string, env map[string]string, timeout time.Duration, fn func(api.CodeEvent) error) error {
	return b.ask(ctx, conn, map[string]any{"token": b.Token, "op": "run", "code": code, "env": env, "timeout": timeout.Seconds()}, fn)
}

// Restart starts the kernel anew, without its variables. A run in progress ends. Restart closes conn.
func (b Bridge) Restart(ctx context.Context, conn net.Conn) error {
	return b.ask(ctx, conn, map[string]any{"token": b.Token, "op": "restart"}, func(api.CodeEvent) error { return nil })
}

func (b Bridge) ask(ctx context.Context, conn net.Conn, request map[string]any, fn func(api.CodeEvent) error) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxLine)
	for err == nil && lines.Scan() {
		var e api.CodeEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return api.Errorf(api.CodeUnavailable, "the code context wrote something that is not an event")
		}
		if err := fn(e); err != nil || e.Type == api.CodeEnd {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err = cmp.Or(err, lines.Err()); errors.Is(err, bufio.ErrTooLong) {
		return api.Errorf(api.CodeTooLarge, "an event of the run has more than %d bytes", maxLine)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return api.Errorf(api.CodeUnavailable, "the code context ended during the run").WithHint("`cloche code ls` lists the contexts; its process has a log")
}
