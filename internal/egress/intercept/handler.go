package intercept

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/hop"
	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/redact"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// requestKey is the key of what is known of a request, in its context.
type requestKey struct{}

// request is what is known of one.
type request struct {
	method, path string
	put          substitution
}

// authority is the host as the machine's side of the proxy addresses it.
func (s *session) authority() string {
	return net.JoinHostPort(string(s.f.Name), strconv.Itoa(int(s.f.Port)))
}

// ServeHTTP implements http.Handler for the requests of one connection.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.handlers.enter() {
		return
	}
	defer s.handlers.leave()
	if ref := s.judge(r); ref != nil {
		s.refuse(w, r, http.StatusForbidden, ref)
		return
	}
	if !settle(r) {
		s.refuse(w, r, http.StatusBadRequest, &rule.Refusal{
			Rule: rule.RuleRequest, Reason: "the request is refused: it asks for a WebSocket with a body, or with another method than GET",
		})
		return
	}
	known := request{method: r.Method, path: shown(r.URL.EscapedPath())}
	var err error
	if known.put, err = s.i.substitute(r.Context(), s.f.Name, s.f.Port, r); err != nil {
		// Why it cannot be read is for the operator's log and not for the sandbox.
		s.refuse(w, r, http.StatusBadGateway, &rule.Refusal{Rule: rule.RuleSecret, Reason: "a secret of this request cannot be read now"})
		return
	}
	if len(known.put.names) > 0 {
		// What comes back is searched for the value, and can only be where it is plain
		// and whole. A server that is asked for no range answers with all of it.
		r.Header.Set("Accept-Encoding", "identity")
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	if r.ProtoMajor == 1 {
		// Both ways at once, as without us. The error is of a writer that cannot.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	on := r.WithContext(context.WithValue(r.Context(), requestKey{}, known))
	if m := s.masks(on.Context(), known.put); len(m) > 0 {
		hiding := &redact.Writer{ResponseWriter: w, Hide: m.header}
		defer hiding.Close()
		w = hiding
	}
	s.proxy.ServeHTTP(w, on)
}

// judge decides about one request.
func (s *session) judge(r *http.Request) *rule.Refusal {
	host, port, _ := strings.Cut(r.Host, ":")
	n, err := rule.ParseName(host)
	switch {
	case r.Method == http.MethodConnect:
		return &rule.Refusal{Rule: rule.RuleRequest, Reason: "the request is refused: CONNECT would hide what follows it; connect to the host itself"}
	case err != nil || n != s.f.Name:
		return s.disagrees("a request on it names another host")
	case port != "" && port != strconv.Itoa(int(s.f.Port)):
		return s.disagrees("a request on it names another port")
	}
	if ref := s.i.requests.Judge(s.f.Name, r.Method, r.URL.RequestURI()); ref != nil {
		return ref
	}
	return s.i.judgeSecrets(s.f.Name, s.f.Port, r)
}

func (s *session) disagrees(why string) *rule.Refusal {
	return &rule.Refusal{Rule: rule.RuleAgree, Reason: "a connection to " + string(s.f.Name) + " is refused: " + why}
}

// settle takes an offer to change the protocol out of a request, where the change is not
// passed on; false is that the request is malformed.
func settle(r *http.Request) bool {
	asked := hop.Asked(hop.Head{
		Method: r.Method, HTTP11: r.ProtoMajor == 1 && r.ProtoMinor == 1, Body: r.ContentLength != 0 || len(r.TransferEncoding) > 0,
		Upgrade: r.Header["Upgrade"], Connection: r.Header["Connection"],
	})
	if asked == hop.Ignored {
		r.Header.Del("Upgrade")
	}
	r.Header.Del("Http2-Settings")
	return asked != hop.Malformed
}

// refuse answers a request that does not go on.
func (s *session) refuse(w http.ResponseWriter, r *http.Request, status int, ref *rule.Refusal) {
	if s.f.Refused != nil {
		s.f.Refused(shown(r.Method), shown(r.URL.EscapedPath()), ref)
	}
	answer(w, status, ref)
}

func answer(w http.ResponseWriter, status int, ref *rule.Refusal) {
	body := inspect.Body(status, ref)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that does not listen any more has its answer
}

// answered looks at a response on its way back.
func (s *session) answered(res *http.Response) error {
	known, _ := res.Request.Context().Value(requestKey{}).(request)
	s.note(known, res.StatusCode)
	m := s.masks(res.Request.Context(), known.put)
	if len(m) == 0 {
		return nil
	}
	m.header(res.Header)
	m.header(res.Trailer) // their names are announced
	coding := res.Header.Get("Content-Encoding")
	if res.StatusCode != http.StatusSwitchingProtocols && (coding == "" || strings.EqualFold(coding, "identity")) {
		res.Body = &maskedBody{ReadCloser: res.Body, masks: m, ended: func() { m.header(res.Trailer) }}
	}
	return nil
}

// masks are the texts that must not come back from this host.
func (s *session) masks(ctx context.Context, put substitution) masks {
	texts := put.sent
	for _, secret := range s.i.boundTo(s.f.Name, s.f.Port) {
		// One that cannot be read now went nowhere with this request.
		if v, err := s.i.value(ctx, secret.Name); err == nil {
			texts = append(texts, v)
		}
	}
	return newMasks(texts)
}

// note tells of the secrets that went with a request.
func (s *session) note(known request, status int) {
	if len(known.put.names) > 0 {
		s.i.used(Use{
			Time: time.Now(), Flow: s.f.ID, Secrets: known.put.names, Name: s.f.Name, Port: s.f.Port,
			Method: shown(known.method), Path: known.path, Status: status,
		})
	}
}

// failed answers a request whose host did not.
func (s *session) failed(w http.ResponseWriter, r *http.Request, err error) {
	known, _ := r.Context().Value(requestKey{}).(request)
	s.note(known, 0)
	if s.base.Err() != nil {
		panic(http.ErrAbortHandler) // the flow was ended: no answer, and the server knows this one
	}
	if ref, ok := errors.AsType[*rule.Refusal](err); ok {
		s.refuse(w, r, http.StatusForbidden, ref)
		return
	}
	// The text is the machine's, about the host; what was put into the request is not
	// in it, but a host can write into an error what it was sent.
	text := []byte(shown(err.Error()))
	s.masks(r.Context(), known.put).hide(text)
	answer(w, http.StatusBadGateway, &rule.Refusal{Rule: "egress.upstream", Reason: fmt.Sprintf("%s did not answer: %s", s.f.Name, text)})
}
