package httpapi

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// egress serves the routes of egress and approvals.
type egress struct{ *Server }

func (s egress) routes() []route {
	return []route{
		{http.MethodGet, "/v1/sandboxes/{ref}/egress", "egress", paceCall, s.egress},
		{http.MethodPatch, "/v1/sandboxes/{ref}/egress", "change_egress", paceCall, s.changeEgress},
		{http.MethodPut, "/v1/sandboxes/{ref}/egress", "change_egress", paceCall, s.replaceEgress},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress/log", "egress_log", paceWait, s.egressLog},
		{http.MethodGet, "/v1/approvals", "list_approvals", paceCall, s.approvals},
		{http.MethodPost, "/v1/approvals/{approval}", "answer_approval", paceCall, s.answerApproval},
	}
}

func (s egress) egress(w http.ResponseWriter, r request) error {
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

func (s egress) changeEgress(w http.ResponseWriter, r request) error {
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

func (s egress) replaceEgress(w http.ResponseWriter, r request) error {
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

func (s egress) egressLog(w http.ResponseWriter, r request) error {
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

func (s egress) approvals(w http.ResponseWriter, r request) error {
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

func (s egress) answerApproval(w http.ResponseWriter, r request) error {
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
