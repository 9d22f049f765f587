package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// RunProgram runs a program and waits for its end. steps can be nil and is otherwise called with
// each step. If ctx ends first, the program continues, unless its spec says otherwise. A failure of
// the program is in its record and not an error. With an IdempotencyKey, RunProgram replaces a
// connection that breaks, and the program still runs once.
func (c *Client) RunProgram(ctx context.Context, spec api.ProgramSpec, steps func(api.ProgramStep)) (*api.Program, error) {
	if err := checkProgram(spec); err != nil {
		return nil, err
	}
	var seen int64
	p, err := c.program(ctx, http.MethodPost, "/programs", spec, steps, &seen)
	if spec.IdempotencyKey != "" && errors.Is(err, errBroken) && ctx.Err() == nil {
		p, err = c.program(ctx, http.MethodPost, "/programs", spec, steps, &seen)
	}
	return p, err
}

// StartProgram starts a program and does not wait for it.
func (c *Client) StartProgram(ctx context.Context, spec api.ProgramSpec) (*api.Program, error) {
	if err := checkProgram(spec); err != nil {
		return nil, err
	}
	var p api.Program
	return &p, c.call(ctx, http.MethodPost, "/programs", url.Values{"detach": {"true"}}, spec, &p)
}

// WaitProgram waits for the end of a program. steps can be nil and is otherwise called with all
// steps.
func (c *Client) WaitProgram(ctx context.Context, id string, steps func(api.ProgramStep)) (*api.Program, error) {
	path, err := programPath(id)
	if err != nil {
		return nil, err
	}
	var seen int64
	p, err := c.program(ctx, http.MethodGet, path, nil, steps, &seen)
	if errors.Is(err, errBroken) && ctx.Err() == nil {
		p, err = c.program(ctx, http.MethodGet, path, nil, steps, &seen)
	}
	return p, err
}

// program reads the answer of a followed program. seen is the last step that was passed to steps.
func (c *Client) program(ctx context.Context, method, path string, in any, steps func(api.ProgramStep), seen *int64) (*api.Program, error) {
	resp, err := c.sendJSON(ctx, method, path, nil, in, "application/x-ndjson")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var p *api.Program
	err = c.scanTo(ctx, resp.Body, maxAnswer, func(line []byte) error {
		var m api.ProgramMessage
		if err := decode(line, &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return m.Error
		case m.Program != nil:
			p = m.Program
		case m.Step != nil && m.Step.Seq > *seen:
			*seen = m.Step.Seq
			if steps != nil {
				steps(*m.Step)
			}
		}
		return nil
	})
	if err == nil && p == nil {
		return nil, c.failed(ctx, errors.New("the answer ended before the program did"))
	}
	return p, err
}

// Program returns a program by its ID, with its original request.
func (c *Client) Program(ctx context.Context, id string) (*api.Program, error) {
	return c.oneProgram(ctx, http.MethodGet, id, "", nil)
}

// Programs returns the newest programs. A limit of 0 is the server's default.
func (c *Client) Programs(ctx context.Context, limit int) (api.ProgramList, error) {
	q := url.Values{}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var l api.ProgramList
	return l, c.call(ctx, http.MethodGet, "/programs", q, nil, &l)
}

// CancelProgram cancels a program, and returns when its sandbox is removed.
func (c *Client) CancelProgram(ctx context.Context, id string) (*api.Program, error) {
	return c.oneProgram(ctx, http.MethodDelete, id, "", nil)
}

// ContinueProgram ends the pause of a handler.
func (c *Client) ContinueProgram(ctx context.Context, id string, answer api.ProgramContinue) (*api.Program, error) {
	return c.oneProgram(ctx, http.MethodPost, id, "/continue", answer)
}

func (c *Client) oneProgram(ctx context.Context, method, id, verb string, in any) (*api.Program, error) {
	path, err := programPath(id)
	if err != nil {
		return nil, err
	}
	var p api.Program
	if err := c.call(ctx, method, path+verb, nil, in, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

func programPath(id string) (string, error) {
	if !api.ValidName(id) {
		return "", api.Invalid("program", "%d characters that are not the id of a program were given", len(id)).WithHint("give the id that the list of programs has")
	}
	return "/programs/" + id, nil
}

// checkProgram refuses what JSON cannot represent.
func checkProgram(s api.ProgramSpec) error {
	if s.Spec != nil {
		if err := checkSpec("spec.", *s.Spec); err != nil {
			return err
		}
	}
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	for name, p := range map[string]*api.ProgramPhase{"setup": s.Setup, "post_setup": s.PostSetup, "run": &s.Run, "score": s.Score} {
		if p == nil {
			continue
		}
		if err := checkEnv(name+".env", p.Env); err != nil {
			return err
		}
		for _, cmd := range p.Commands {
			if err := checkExec(name+".", api.ExecRequest{Argv: cmd.Argv, Shell: cmd.Shell, Python: cmd.Python}); err != nil {
				return err
			}
		}
	}
	return nil
}
