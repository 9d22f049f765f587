package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Sandbox is a handle of a sandbox: its record when the handle was created, and the calls for it.
// The calls use the ID, so a handle never reaches a later sandbox of the same name.
type Sandbox struct {
	api.Sandbox
	client *Client
}

// Create creates a sandbox. The returned record says what was granted, what was adjusted and what
// this machine cannot enforce. On error the daemon leaves nothing behind, unless the connection
// broke. A spec with an IdempotencyKey is then sent a second time, and the caller can repeat it: it
// creates only one sandbox.
func (c *Client) Create(ctx context.Context, spec api.SandboxSpec) (*Sandbox, error) {
	return c.CreateProgress(ctx, spec, nil)
}

// CreateProgress is Create, but calls step with the name of each step as it begins. step is called
// from the calling goroutine. See WithPullProgress for the progress of a step that pulls an image.
func (c *Client) CreateProgress(ctx context.Context, spec api.SandboxSpec, step func(string)) (*Sandbox, error) {
	if err := checkSpec("", spec); err != nil {
		return nil, err
	}
	var sb api.Sandbox
	if step == nil && !wantsPull(ctx) {
		if err := c.callKeyed(ctx, spec.IdempotencyKey, "/sandboxes", spec, &sb); err != nil {
			return nil, err
		}
		return &Sandbox{sb, c}, nil
	}
	got := false
	err := c.lines(ctx, http.MethodPost, "/sandboxes", nil, spec, func(line []byte) error {
		var m api.ServerMessage
		if err := decode(line, &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return m.Error
		case m.Sandbox != nil:
			sb, got = *m.Sandbox, true
		case m.Step != "" && step != nil:
			step(m.Step)
		default:
			tellPull(ctx, m.Pull)
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

// Get returns a sandbox by ID or name. If it does not exist, or not for this caller, the error is
// api.ErrNotFound.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	p, err := sandboxPath(ref, "")
	if err != nil {
		return nil, err
	}
	var sb api.Sandbox
	if err := c.call(ctx, http.MethodGet, p, nil, nil, &sb); err != nil {
		return nil, err
	}
	return &Sandbox{sb, c}, nil
}

// Stats measures the present resource usage of a sandbox. A value that cannot be measured is nil.
func (c *Client) Stats(ctx context.Context, ref string) (api.SandboxStats, error) {
	var st api.SandboxStats
	p, err := sandboxPath(ref, "/stats")
	if err != nil {
		return st, err
	}
	return st, c.call(ctx, http.MethodGet, p, nil, nil, &st)
}

// List returns one page of the caller's sandboxes, newest first.
func (c *Client) List(ctx context.Context, o api.ListOptions) (api.SandboxList, error) {
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
	var l api.SandboxList
	return l, c.call(ctx, http.MethodGet, "/sandboxes", q, nil, &l)
}

// ListAll iterates over all pages. It ends after the first error.
func (c *Client) ListAll(ctx context.Context, o api.ListOptions) iter.Seq2[api.Sandbox, error] {
	return pages(o.Cursor, func(cursor string) ([]api.Sandbox, string, error) {
		o := o
		o.Cursor = cursor
		l, err := c.List(ctx, o)
		return l.Sandboxes, l.Next, err
	})
}

// Remove kills the processes of a sandbox and removes it with its private workspace.
func (c *Client) Remove(ctx context.Context, ref string) error {
	_, err := c.Delete(ctx, ref)
	return err
}

// Delete is Remove, but returns the last record of the sandbox: why it ended, and the result of its
// teardown. By ID it can be repeated within 24 hours. If the teardown fails, the error says so, and
// the daemon retries until it succeeds; until then the sandbox is listed as deleting.
func (c *Client) Delete(ctx context.Context, ref string) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodDelete, p, nil, nil, &sb)
}

// Stop ends a sandbox gracefully: it sends TERM to every process, waits for the grace period,
// flushes files, and sends KILL. The record and the logs stay until Remove.
func (c *Client) Stop(ctx context.Context, ref string, o api.StopOptions) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/stop")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, o, &sb)
}

// StartSandbox starts a sandbox that has ended, with its workspace and the root that its last stop saved. Lost of
// the record lists what could not be kept. Starting a sandbox that runs is not an error.
func (c *Client) StartSandbox(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/start")
}

// Kill ends a sandbox at once, without notice to its processes.
func (c *Client) Kill(ctx context.Context, ref string) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/kill")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, nil, &sb)
}

// sandboxPath returns the URL path of a sandbox, followed by rest.
func sandboxPath(ref, rest string) (string, error) {
	part, err := pathPart("ref", "sandbox", ref)
	return "/sandboxes/" + part + rest, err
}

// pathPart returns an ID or a name as one element of a URL path. It refuses elements that are
// removed from paths on the way, because the path would then name something else.
func pathPart(field, kind, ref string) (string, error) {
	if ref == "" || ref == "." || ref == ".." {
		return "", api.Invalid(field, "%q names no %s", ref, kind).WithHint("give its id or its name, as a list shows it")
	}
	return url.PathEscape(ref), nil
}

// Heartbeat renews the lease of a sandbox, as any use does, and returns the record with the new
// end.
func (c *Client) Heartbeat(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/heartbeat")
}

// Extend sets the remaining lifetime of a sandbox, up to the ceiling of its profile. It never
// shortens the lifetime.
func (c *Client) Extend(ctx context.Context, ref string, lifetime time.Duration) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/extend")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, api.Extension{LifetimeMS: lifetime.Milliseconds()}, &sb)
}

// SetLifetime makes the lifetime of a sandbox end after this time from now on, also if it would have
// ended later or never.
func (c *Client) SetLifetime(ctx context.Context, ref string, lifetime time.Duration) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/extend")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, api.Extension{LifetimeMS: lifetime.Milliseconds(), Exact: true}, &sb)
}

// Pause pauses all processes of a sandbox. Its idle time is paused too, and its lifetime continues.
func (c *Client) Pause(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/pause")
}

// Suspend saves the memory and the root of a sandbox to the daemon's disk and frees the memory and CPU that it uses.
// Its connections end, its idle time is paused, and its lifetime continues. Resume continues its processes, also after a
// restart of the daemon or of the machine. Engines that cannot do it return api.CodeUnsupported.
func (c *Client) Suspend(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/suspend")
}

// Fork creates sandboxes that continue from the memory and the files of another, which runs or is suspended. One that runs
// is suspended for a moment, which ends its connections, and resumed. The forks have its processes, IDs and own tokens, leases and networks, and no open ports. Engines
// that cannot do it, and sandboxes that hold what only one can have, return api.CodeUnsupported.
func (c *Client) Fork(ctx context.Context, ref string, req api.ForkRequest) (api.ForkResult, error) {
	var res api.ForkResult
	p, err := sandboxPath(ref, "/fork")
	if err != nil {
		return res, err
	}
	return res, c.call(ctx, http.MethodPost, p, nil, req, &res)
}

// Resume resumes the processes of a paused or suspended sandbox.
func (c *Client) Resume(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/resume")
}

// act makes a call without a body that returns the sandbox.
func (c *Client) act(ctx context.Context, ref, verb string) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, verb)
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, nil, &sb)
}

// CreateMany creates many sandboxes in one call. The daemon decides how many it creates in
// parallel. Some may fail, and the result lists each. If ctx ends before the answer, the daemon
// removes the sandboxes that have no idempotency key.
func (c *Client) CreateMany(ctx context.Context, b api.BatchCreate) (api.BatchResult, error) {
	for i, spec := range b.Specs {
		if err := checkSpec(fmt.Sprintf("specs[%d].", i), spec); err != nil {
			return api.BatchResult{}, err
		}
	}
	return c.batch(ctx, "/batch/create", b)
}

// StatusMany is Get for up to api.MaxBatch IDs or names.
func (c *Client) StatusMany(ctx context.Context, ids ...string) (api.BatchResult, error) {
	return c.batch(ctx, "/batch/status", api.BatchSelect{IDs: ids})
}

// RemoveMany removes all sandboxes that sel selects, each independently.
func (c *Client) RemoveMany(ctx context.Context, sel api.BatchSelect) (api.BatchResult, error) {
	return c.batch(ctx, "/batch/remove", sel)
}

func (c *Client) batch(ctx context.Context, path string, in any) (api.BatchResult, error) {
	var out api.BatchResult
	return out, c.call(ctx, http.MethodPost, path, nil, in, &out)
}

// RemoveByKey removes the sandbox with an idempotency key and prevents its later creation: a create
// with the key that is in progress, or arrives within 24 hours, creates nothing. It can be
// repeated.
func (c *Client) RemoveByKey(ctx context.Context, key string) (api.Sandbox, error) {
	var sb api.Sandbox
	return sb, c.call(ctx, http.MethodDelete, "/sandboxes", url.Values{"idempotency_key": {key}}, nil, &sb)
}
