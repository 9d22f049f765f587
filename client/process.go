package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// StartProcess starts a managed process and returns when it has been executed, whether or not it is
// ready. A spec with an ExecID is sent a second time when its connection breaks, and the daemon
// starts the process once.
func (c *Client) StartProcess(ctx context.Context, ref string, spec api.ProcessSpec) (api.Process, error) {
	var p api.Process
	path, err := sandboxPath(ref, "/processes")
	if err != nil {
		return p, err
	}
	if err := checkExec("", spec.ExecRequest); err != nil {
		return p, err
	}
	return p, c.callKeyed(ctx, spec.ExecID, path, spec, &p)
}

// Processes returns the records of all processes of a sandbox, execs and managed ones, in the order
// of their start.
func (c *Client) Processes(ctx context.Context, ref string) ([]api.Process, error) {
	p, err := sandboxPath(ref, "/processes")
	if err != nil {
		return nil, err
	}
	var l api.ProcessList
	if err := c.call(ctx, http.MethodGet, p, nil, nil, &l); err != nil {
		return nil, err
	}
	return l.Processes, nil
}

// Process returns the record of one process.
func (c *Client) Process(ctx context.Context, ref, id string) (api.Process, error) {
	var p api.Process
	path, err := processPath(ref, id, "")
	if err != nil {
		return p, err
	}
	return p, c.call(ctx, http.MethodGet, path, nil, nil, &p)
}

// SignalProcess sends a signal to a process, and to the other processes in the scope.
func (c *Client) SignalProcess(ctx context.Context, ref, id string, r api.SignalRequest) error {
	path, err := processPath(ref, id, "/signal")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, nil, r, nil)
}

// ResizeProcess changes the size of a process's terminal.
func (c *Client) ResizeProcess(ctx context.Context, ref, id string, size api.Size) error {
	path, err := processPath(ref, id, "/resize")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, nil, size, nil)
}

// WriteStdin writes the content of r to a process's input, and returns when all of it was written
// to the process. With end, it then closes the input. offset is the offset of the first byte since
// the start of the process. Bytes that the process already has are ignored, so a write whose answer
// was lost can be repeated. A nil offset is the present end.
func (c *Client) WriteStdin(ctx context.Context, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error) {
	var ack api.StdinAck
	path, err := processPath(ref, id, "/stdin")
	if err != nil {
		return ack, err
	}
	q := url.Values{}
	if offset != nil {
		q.Set("offset", strconv.FormatInt(*offset, 10))
	}
	if end {
		q.Set("end", "true")
	}
	return ack, c.upload(ctx, http.MethodPost, path, q, "application/octet-stream", r, &ack)
}

// CloseStdin closes the input of a process.
func (c *Client) CloseStdin(ctx context.Context, ref, id string) (api.StdinAck, error) {
	return c.WriteStdin(ctx, ref, id, nil, http.NoBody, true)
}

// RemoveProcess kills a process if it is running, and removes its record and log.
func (c *Client) RemoveProcess(ctx context.Context, ref, id string) error {
	path, err := processPath(ref, id, "")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, path, nil, nil, nil)
}

// processPath returns the URL path of a process, followed by rest.
func processPath(ref, id, rest string) (string, error) {
	part, err := pathPart("exec_id", "process", id)
	if err != nil {
		return "", err
	}
	return sandboxPath(ref, "/processes/"+part+rest)
}

func contextPath(ref, id, rest string) (string, error) {
	part, err := pathPart("context", "code context", id)
	if err != nil {
		return "", err
	}
	return sandboxPath(ref, "/contexts/"+part+rest)
}

// CreateContext creates a code context and returns when its kernel is ready.
func (c *Client) CreateContext(ctx context.Context, ref string, spec api.CodeContextSpec) (api.CodeContext, error) {
	var out api.CodeContext
	path, err := sandboxPath(ref, "/contexts")
	if err != nil {
		return out, err
	}
	if err := checkTexts("", "id", spec.ID, "language", spec.Language, "cwd", spec.Cwd, "user", spec.User); err != nil {
		return out, err
	}
	if err := checkEnv("env", spec.Env); err != nil {
		return out, err
	}
	return out, c.call(ctx, http.MethodPost, path, nil, spec, &out)
}

// Contexts returns the code contexts of a sandbox, in the order of their start.
func (c *Client) Contexts(ctx context.Context, ref string) ([]api.CodeContext, error) {
	path, err := sandboxPath(ref, "/contexts")
	if err != nil {
		return nil, err
	}
	var l api.CodeContextList
	return l.Contexts, c.call(ctx, http.MethodGet, path, nil, nil, &l)
}

// RestartContext restarts the kernel of a code context, which loses its variables.
func (c *Client) RestartContext(ctx context.Context, ref, id string) error {
	path, err := contextPath(ref, id, "/restart")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, nil, nil, nil)
}

// RemoveContext ends a code context.
func (c *Client) RemoveContext(ctx context.Context, ref, id string) error {
	path, err := contextPath(ref, id, "")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, path, nil, nil, nil)
}

// RunCode runs code in a context and calls fn with its events; the last has the type api.CodeEnd. An
// exception of the code is an event and no error. The end of ctx interrupts the run.
func (c *Client) RunCode(ctx context.Context, ref string, r api.CodeRequest, fn func(api.CodeEvent) error) error {
	path, err := sandboxPath(ref, "/code")
	if err != nil {
		return err
	}
	if err := checkTexts("", "code", r.Code, "context", r.Context, "language", r.Language); err != nil {
		return err
	}
	if err := checkEnv("env", r.Env); err != nil {
		return err
	}
	return c.lines(ctx, http.MethodPost, path, nil, r, func(line []byte) error {
		v, err := decodeLine[api.CodeEvent](line)
		if err != nil {
			return err
		}
		return fn(v)
	})
}
