package httpapi

import (
	"context"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// maxGrace is the longest grace period of a stop.
const maxGrace = 10 * time.Minute

const ndjson = "application/x-ndjson"

func (s *Server) createSandbox(w http.ResponseWriter, r request) error {
	var spec api.SandboxSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	if err := r.keyOf(&spec.IdempotencyKey); err != nil {
		return err
	}
	if !accepts(r, ndjson) {
		sb, err := s.core.Create(r.Context(), r.caller, spec, nil)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusCreated, sb)
		return nil
	}
	// The status is sent with the first line, so that a refusal, which comes
	// before any step, is still an answer of its own.
	lines := newLineWriter(w, http.StatusCreated)
	defer lines.close()
	// A failed progress report does not stop the pull. Only the context does.
	ctx := core.WithPullProgress(r.Context(), func(p api.PullProgress) { _ = lines.write(api.ServerMessage{Pull: &p}) })
	sb, err := s.core.Create(ctx, r.caller, spec, func(step string) { _ = lines.write(api.ServerMessage{Step: step}) })
	if err != nil {
		return lines.fail(err, r)
	}
	return lines.write(api.ServerMessage{Sandbox: &sb})
}

func (s *Server) listSandboxes(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.ListOptions{
		Labels: q.labels(), States: q.states(), Cursor: q.str("cursor"),
		Limit: int(q.integer("limit", 0, 0, 1000)),
	}
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.List(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	l.Sandboxes = nonNil(l.Sandboxes)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) getSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return answer(w)(s.core.Get(r.Context(), r.caller, r.ref()))
}

func (s *Server) stats(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	st, err := s.core.Stats(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

// Operations that end a sandbox continue when their caller disconnects, because a partial teardown
// is useless.

func (s *Server) removeSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return answer(w)(s.core.Delete(context.WithoutCancel(r.Context()), r.caller, r.ref()))
}

// removeKeyed deletes by the key of a creation, which may not have come yet.
func (s *Server) removeKeyed(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	key := q.str("idempotency_key")
	if err := q.end(); err != nil {
		return err
	}
	if key == "" {
		return api.Invalid("idempotency_key", "no idempotency key is named").
			WithHint("DELETE /v1/sandboxes/{ref} removes one sandbox, POST /v1/batch/remove many")
	}
	return answer(w)(s.core.DeleteKeyed(context.WithoutCancel(r.Context()), r.caller, key))
}

func (s *Server) stopSandbox(w http.ResponseWriter, r request) error {
	var o api.StopOptions
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &o); err != nil {
		return err
	}
	var grace *time.Duration
	if o.GraceMS != nil {
		if *o.GraceMS < 0 || *o.GraceMS > maxGrace.Milliseconds() {
			return api.Invalid("grace_ms", "grace_ms is %d", *o.GraceMS).WithHint("want 0 to %d", maxGrace.Milliseconds())
		}
		d := time.Duration(*o.GraceMS) * time.Millisecond
		grace = &d
		r.grace(d)
	}
	return answer(w)(s.core.Stop(context.WithoutCancel(r.Context()), r.caller, r.ref(), grace))
}

func (s *Server) killSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &struct{}{}); err != nil {
		return err
	}
	return answer(w)(s.core.Kill(context.WithoutCancel(r.Context()), r.caller, r.ref()))
}

// answer writes a sandbox's record.
func answer(w http.ResponseWriter) func(api.Sandbox, error) error {
	return func(sb api.Sandbox, err error) error {
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, sb)
		return nil
	}
}

// accepts reports whether the caller names a media type in Accept.
func accepts(r request, want string) bool {
	for _, h := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(h, ",") {
			if kind, _, err := mime.ParseMediaType(part); err == nil && kind == want {
				return true
			}
		}
	}
	return false
}

// nonNil keeps an empty list from being null in JSON.
func nonNil[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
