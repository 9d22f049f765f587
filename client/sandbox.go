package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche"
)

// Sandbox is a handle: what was on record when it was made, and the calls that
// concern it. The calls go by id, so a handle never reaches a later sandbox of
// the same name.
type Sandbox struct {
	cloche.Sandbox
	client *Client
}

// Create makes a sandbox. The returned record says what was granted, what was
// adjusted and what this machine cannot enforce. On error nothing is left
// behind by the daemon.
func (c *Client) Create(ctx context.Context, spec cloche.SandboxSpec) (*Sandbox, error) {
	return c.CreateProgress(ctx, spec, nil)
}

// CreateProgress is Create that calls step with the name of each step as it
// begins. step is called from the calling goroutine.
func (c *Client) CreateProgress(ctx context.Context, spec cloche.SandboxSpec, step func(string)) (*Sandbox, error) {
	if err := checkSpec("", spec); err != nil {
		return nil, err
	}
	var sb cloche.Sandbox
	if step == nil {
		if err := c.call(ctx, http.MethodPost, "/sandboxes", nil, spec, &sb); err != nil {
			return nil, err
		}
		return &Sandbox{sb, c}, nil
	}
	got := false
	err := c.lines(ctx, http.MethodPost, "/sandboxes", nil, spec, func(line []byte) error {
		var m cloche.ServerMessage
		if err := decode(line, &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return m.Error
		case m.Sandbox != nil:
			sb, got = *m.Sandbox, true
		case m.Step != "":
			step(m.Step)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !got {
		return nil, brokenAnswer("the daemon ended its answer without a sandbox")
	}
	return &Sandbox{sb, c}, nil
}

// Get finds a sandbox by id or name. One that does not exist, or not for this
// caller, is cloche.ErrNotFound.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	p, err := sandboxPath(ref, "")
	if err != nil {
		return nil, err
	}
	var sb cloche.Sandbox
	if err := c.call(ctx, http.MethodGet, p, nil, nil, &sb); err != nil {
		return nil, err
	}
	return &Sandbox{sb, c}, nil
}

// List returns one page of the caller's sandboxes, newest first.
func (c *Client) List(ctx context.Context, o cloche.ListOptions) (cloche.SandboxList, error) {
	q := url.Values{}
	for k, v := range o.Labels {
		q.Add("label", k+"="+v)
	}
	for _, s := range o.States {
		q.Add("state", string(s))
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Cursor != "" {
		q.Set("cursor", o.Cursor)
	}
	var l cloche.SandboxList
	return l, c.call(ctx, http.MethodGet, "/sandboxes", q, nil, &l)
}

// ListAll walks over every page. It ends after the first error.
func (c *Client) ListAll(ctx context.Context, o cloche.ListOptions) iter.Seq2[cloche.Sandbox, error] {
	return func(yield func(cloche.Sandbox, error) bool) {
		for {
			l, err := c.List(ctx, o)
			if err != nil {
				yield(cloche.Sandbox{}, err)
				return
			}
			for _, sb := range l.Sandboxes {
				if !yield(sb, nil) {
					return
				}
			}
			if l.Next == "" {
				return
			}
			if l.Next == o.Cursor {
				yield(cloche.Sandbox{}, brokenAnswer("the daemon answered with the cursor that it was asked with"))
				return
			}
			o.Cursor = l.Next
		}
	}
}

// Remove kills what runs in a sandbox and removes it with its private workspace.
func (c *Client) Remove(ctx context.Context, ref string) error {
	p, err := sandboxPath(ref, "")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, nil, nil, nil)
}

// Stop ends a sandbox in good order: TERM to every process, the grace period,
// files flushed, then KILL. The record and the logs stay until Remove.
func (c *Client) Stop(ctx context.Context, ref string, o cloche.StopOptions) (cloche.Sandbox, error) {
	var sb cloche.Sandbox
	p, err := sandboxPath(ref, "/stop")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, o, &sb)
}

// Kill ends a sandbox at once, without asking anything inside.
func (c *Client) Kill(ctx context.Context, ref string) (cloche.Sandbox, error) {
	var sb cloche.Sandbox
	p, err := sandboxPath(ref, "/kill")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, nil, &sb)
}

// Processes returns what is on record about each exec of a sandbox, oldest first.
func (c *Client) Processes(ctx context.Context, ref string) ([]cloche.Process, error) {
	p, err := sandboxPath(ref, "/processes")
	if err != nil {
		return nil, err
	}
	var l struct {
		Processes []cloche.Process `json:"processes"`
	}
	if err := c.call(ctx, http.MethodGet, p, nil, nil, &l); err != nil {
		return nil, err
	}
	return l.Processes, nil
}

// sandboxPath is the path of a sandbox, with what stands behind its ref.
func sandboxPath(ref, rest string) (string, error) {
	if ref == "" || ref == "." || ref == ".." {
		return "", cloche.Invalid("ref", "%q names no sandbox", ref).WithHint("give its id or its name")
	}
	return "/sandboxes/" + url.PathEscape(ref) + rest, nil
}
