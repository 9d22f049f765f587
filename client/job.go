package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// RunJob runs a job and waits for its end. steps can be nil and is otherwise called with
// each step. If ctx ends first, the job continues, unless its spec says otherwise. A failure of
// the job is in its record and not an error. With an IdempotencyKey, RunJob replaces a
// connection that breaks, and the job still runs once.
func (c *Client) RunJob(ctx context.Context, spec api.JobSpec, steps func(api.JobStep)) (*api.Job, error) {
	if err := checkJob(spec); err != nil {
		return nil, err
	}
	var seen int64
	p, err := c.job(ctx, http.MethodPost, "/jobs", spec, steps, &seen)
	if spec.IdempotencyKey != "" && errors.Is(err, errBroken) && ctx.Err() == nil {
		p, err = c.job(ctx, http.MethodPost, "/jobs", spec, steps, &seen)
	}
	return p, err
}

// StartJob starts a job and does not wait for it.
func (c *Client) StartJob(ctx context.Context, spec api.JobSpec) (*api.Job, error) {
	if err := checkJob(spec); err != nil {
		return nil, err
	}
	var p api.Job
	return &p, c.call(ctx, http.MethodPost, "/jobs", url.Values{"detach": {"true"}}, spec, &p)
}

// WaitJob waits for the end of a job. steps can be nil and is otherwise called with all
// steps.
func (c *Client) WaitJob(ctx context.Context, id string, steps func(api.JobStep)) (*api.Job, error) {
	path, err := jobPath(id)
	if err != nil {
		return nil, err
	}
	var seen int64
	p, err := c.job(ctx, http.MethodGet, path, nil, steps, &seen)
	if errors.Is(err, errBroken) && ctx.Err() == nil {
		p, err = c.job(ctx, http.MethodGet, path, nil, steps, &seen)
	}
	return p, err
}

// job reads the answer of a followed job. seen is the last step that was passed to steps.
func (c *Client) job(ctx context.Context, method, path string, in any, steps func(api.JobStep), seen *int64) (*api.Job, error) {
	resp, err := c.sendJSON(ctx, method, path, nil, in, "application/x-ndjson")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var p *api.Job
	err = c.scanTo(ctx, resp.Body, maxAnswer, func(line []byte) error {
		var m api.JobMessage
		if err := decode(line, &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return m.Error
		case m.Job != nil:
			p = m.Job
		case m.Step != nil && m.Step.Seq > *seen:
			*seen = m.Step.Seq
			if steps != nil {
				steps(*m.Step)
			}
		}
		return nil
	})
	if err == nil && p == nil {
		return nil, c.failed(ctx, errors.New("the answer ended before the job did"))
	}
	return p, err
}

// Job returns a job by its ID, with its original request.
func (c *Client) Job(ctx context.Context, id string) (*api.Job, error) {
	return c.oneJob(ctx, http.MethodGet, id, "", nil)
}

// Jobs returns the newest jobs. A limit of 0 is the server's default.
func (c *Client) Jobs(ctx context.Context, limit int) (api.JobList, error) {
	q := url.Values{}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var l api.JobList
	return l, c.call(ctx, http.MethodGet, "/jobs", q, nil, &l)
}

// CancelJob cancels a job, and returns when its sandbox is removed.
func (c *Client) CancelJob(ctx context.Context, id string) (*api.Job, error) {
	return c.oneJob(ctx, http.MethodDelete, id, "", nil)
}

// ContinueJob ends the pause of a handler.
func (c *Client) ContinueJob(ctx context.Context, id string, answer api.JobContinue) (*api.Job, error) {
	return c.oneJob(ctx, http.MethodPost, id, "/continue", answer)
}

func (c *Client) oneJob(ctx context.Context, method, id, verb string, in any) (*api.Job, error) {
	path, err := jobPath(id)
	if err != nil {
		return nil, err
	}
	var p api.Job
	if err := c.call(ctx, method, path+verb, nil, in, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

func jobPath(id string) (string, error) {
	if !api.ValidName(id) {
		return "", api.Invalid("job", "%d characters that are not the id of a job were given", len(id)).WithHint("give the id that the list of jobs has")
	}
	return "/jobs/" + id, nil
}

// checkJob refuses what JSON cannot represent.
func checkJob(s api.JobSpec) error {
	if s.Spec != nil {
		if err := checkSpec("spec.", *s.Spec); err != nil {
			return err
		}
	}
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	for name, p := range map[string]*api.JobPhase{"setup": s.Setup, "post_setup": s.PostSetup, "run": &s.Run, "score": s.Score} {
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
