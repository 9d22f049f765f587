package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// jobs serves the routes of jobs.
type jobs struct{ *Server }

func (s jobs) routes() []route {
	return []route{
		{http.MethodPost, "/v1/jobs", "run_job", paceWait, s.runJob},
		{http.MethodGet, "/v1/jobs", "list_jobs", paceCall, s.jobs},
		{http.MethodGet, "/v1/jobs/{job}", "get_job", paceWait, s.getJob},
		{http.MethodDelete, "/v1/jobs/{job}", "cancel_job", paceChange, s.cancelJob},
		{http.MethodPost, "/v1/jobs/{job}/continue", "continue_job", paceCall, s.continueJob},
	}
}

// oldJobMessage is the last line of a followed job at the deprecated path.
type oldJobMessage struct {
	Job *api.Job `json:"program"`
}

// oldJobList is api.JobList at the deprecated path.
type oldJobList struct {
	Jobs []api.Job `json:"programs"`
}

// runJob begins a job and, unless the caller does not want to wait, answers when
// it has ended. What becomes of the caller is nothing to the job, where the request
// does not say otherwise.
func (s jobs) runJob(w http.ResponseWriter, r request) error {
	var spec api.JobSpec
	q := queryOf(r)
	detach := q.boolean("detach")
	if err := q.end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	if err := r.keyOf(&spec.IdempotencyKey); err != nil {
		return err
	}
	if detach && spec.CancelWithCaller {
		return api.Invalid("cancel_with_caller", "a detached job has no waiting call").
			WithHint("leave detach out and wait, or leave cancel_with_caller out")
	}
	p, err := s.core.StartJob(core.WithLive(r.Context(), r.live), r.caller, spec)
	if err != nil {
		return err
	}
	if detach {
		writeJSON(w, http.StatusAccepted, p)
		return nil
	}
	err = s.followJob(w, r, p.ID)
	if spec.CancelWithCaller && r.Context().Err() != nil {
		_, _ = s.core.CancelJob(context.WithoutCancel(r.Context()), r.caller, p.ID) // the client has disconnected
	}
	return err
}

func (s jobs) getJob(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if accepts(r, ndjson) {
		return s.followJob(w, r, r.PathValue("job"))
	}
	return sendJob(w)(s.core.Job(r.Context(), r.caller, r.PathValue("job")))
}

// followJob answers when the job has ended: with its steps as they happen, for a
// caller that takes lines, and with the job.
func (s jobs) followJob(w http.ResponseWriter, r request, id string) error {
	if accepts(r, ndjson) {
		return s.lines(w, r, true, func(ctx context.Context, lines *lineWriter) error {
			p, err := s.core.FollowJob(ctx, r.caller, id, func(st api.JobStep) error {
				return lines.write(api.JobMessage{Step: &st})
			})
			if err != nil {
				return err
			}
			if r.oldJobs {
				return lines.write(oldJobMessage{Job: &p})
			}
			return lines.write(api.JobMessage{Job: &p})
		})
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	p, err := s.core.FollowJob(ctx, r.caller, id, func(api.JobStep) error { return nil })
	return sendJob(w)(p, cut(ctx, err))
}

func (s jobs) jobs(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	limit := int(q.integer("limit", 0, 0, 1000))
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.Jobs(r.Context(), r.caller, limit)
	if err != nil {
		return err
	}
	l.Jobs = nonNil(l.Jobs)
	if r.oldJobs {
		writeJSON(w, http.StatusOK, oldJobList(l))
		return nil
	}
	writeJSON(w, http.StatusOK, l)
	return nil
}

// cancelJob continues when its caller disconnects, because a partial teardown is useless.
func (s jobs) cancelJob(w http.ResponseWriter, r request) error {
	if err := s.emptyBody(w, r); err != nil {
		return err
	}
	return sendJob(w)(s.core.CancelJob(context.WithoutCancel(r.Context()), r.caller, r.PathValue("job")))
}

func (s jobs) continueJob(w http.ResponseWriter, r request) error {
	var c api.JobContinue
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &c); err != nil {
		return err
	}
	return sendJob(w)(s.core.ContinueJob(r.Context(), r.caller, r.PathValue("job"), c))
}

// sendJob writes a job's record.
func sendJob(w http.ResponseWriter) func(api.Job, error) error {
	return func(p api.Job, err error) error {
		if err != nil {
			return err
		}
		p.Phases = nonNil(p.Phases)
		writeJSON(w, http.StatusOK, p)
		return nil
	}
}
