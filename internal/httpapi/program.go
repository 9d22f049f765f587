package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// runProgram begins a program and, unless the caller does not want to wait, answers when
// it has ended. What becomes of the caller is nothing to the program, where the request
// does not say otherwise.
func (s *Server) runProgram(w http.ResponseWriter, r request) error {
	var spec api.ProgramSpec
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
		return api.Invalid("cancel_with_caller", "a detached program has no waiting call").
			WithHint("leave detach out and wait, or leave cancel_with_caller out")
	}
	p, err := s.core.StartProgram(core.WithLive(r.Context(), r.live), r.caller, spec)
	if err != nil {
		return err
	}
	if detach {
		writeJSON(w, http.StatusAccepted, p)
		return nil
	}
	err = s.followProgram(w, r, p.ID)
	if spec.CancelWithCaller && r.Context().Err() != nil {
		_, _ = s.core.CancelProgram(context.WithoutCancel(r.Context()), r.caller, p.ID) // the client has disconnected
	}
	return err
}

func (s *Server) getProgram(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if accepts(r, ndjson) {
		return s.followProgram(w, r, r.PathValue("program"))
	}
	return sendProgram(w)(s.core.Program(r.Context(), r.caller, r.PathValue("program")))
}

// followProgram answers when the program has ended: with its steps as they happen, for a
// caller that takes lines, and with the program.
func (s *Server) followProgram(w http.ResponseWriter, r request, id string) error {
	if accepts(r, ndjson) {
		return s.lines(w, r, true, func(ctx context.Context, lines *lineWriter) error {
			p, err := s.core.FollowProgram(ctx, r.caller, id, func(st api.ProgramStep) error {
				return lines.write(api.ProgramMessage{Step: &st})
			})
			if err != nil {
				return err
			}
			return lines.write(api.ProgramMessage{Program: &p})
		})
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	p, err := s.core.FollowProgram(ctx, r.caller, id, func(api.ProgramStep) error { return nil })
	return sendProgram(w)(p, cut(ctx, err))
}

func (s *Server) programs(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	limit := int(q.integer("limit", 0, 0, 1000))
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.Programs(r.Context(), r.caller, limit)
	if err != nil {
		return err
	}
	l.Programs = nonNil(l.Programs)
	writeJSON(w, http.StatusOK, l)
	return nil
}

// cancelProgram continues when its caller disconnects, because a partial teardown is useless.
func (s *Server) cancelProgram(w http.ResponseWriter, r request) error {
	if err := s.noBody(w, r); err != nil {
		return err
	}
	return sendProgram(w)(s.core.CancelProgram(context.WithoutCancel(r.Context()), r.caller, r.PathValue("program")))
}

func (s *Server) continueProgram(w http.ResponseWriter, r request) error {
	var c api.ProgramContinue
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &c); err != nil {
		return err
	}
	return sendProgram(w)(s.core.ContinueProgram(r.Context(), r.caller, r.PathValue("program"), c))
}

// sendProgram writes a program's record.
func sendProgram(w http.ResponseWriter) func(api.Program, error) error {
	return func(p api.Program, err error) error {
		if err != nil {
			return err
		}
		p.Phases = nonNil(p.Phases)
		writeJSON(w, http.StatusOK, p)
		return nil
	}
}
