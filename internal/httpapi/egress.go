package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

func (s *Server) egress(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	rules, err := s.core.Egress(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rules)
	return nil
}

func (s *Server) changeEgress(w http.ResponseWriter, r request) error {
	var c api.EgressChange
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &c); err != nil {
		return err
	}
	rules, err := s.core.ChangeEgress(r.Context(), r.caller, r.ref(), c)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rules)
	return nil
}

func (s *Server) replaceEgress(w http.ResponseWriter, r request) error {
	var p api.EgressPolicy
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &p); err != nil {
		return err
	}
	rules, err := s.core.ReplaceEgress(r.Context(), r.caller, r.ref(), p)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rules)
	return nil
}

func (s *Server) egressLog(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.EgressLogOptions{Tail: int(q.integer("tail", 0, 0, 100_000)), Follow: q.boolean("follow")}
	for _, k := range q.all("kind") {
		o.Kinds = append(o.Kinds, api.EgressKind(k))
	}
	if n := q.number("after"); n != nil {
		o.After = *n
	}
	if err := q.end(); err != nil {
		return err
	}
	return s.lines(w, r, o.Follow, func(ctx context.Context, lines *lineWriter) error {
		return s.core.EgressLog(ctx, r.caller, r.ref(), o, func(rec api.EgressRecord) error { return lines.write(rec) })
	})
}

func (s *Server) approvals(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.ApprovalOptions{Sandbox: q.str("sandbox"), All: q.boolean("all")}
	if err := q.end(); err != nil {
		return err
	}
	if o.Sandbox != "" && !api.ValidName(o.Sandbox) {
		return noSandbox(o.Sandbox)
	}
	l, err := s.core.Approvals(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	l.Approvals = nonNil(l.Approvals)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) answerApproval(w http.ResponseWriter, r request) error {
	var a api.ApprovalAnswer
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &a); err != nil {
		return err
	}
	answered, err := s.core.AnswerApproval(r.Context(), r.caller, r.PathValue("approval"), a)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answered)
	return nil
}
