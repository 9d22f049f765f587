// Package intercept opens the TLS of some hosts for one sandbox, to judge the
// requests inside and to put secrets in the place of what stands for them. It is
// between two connections: towards the sandbox it is a server with certificates
// that only this sandbox trusts, towards the host a client that verifies as any
// other does.
package intercept

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/inspect"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Options are what an Interceptor is made of.
type Options struct {
	// Authority is the sandbox's own. It must not be nil.
	Authority *Authority
	// Roots are those by which hosts are verified; nil is the machine's.
	Roots *x509.CertPool
	// Secrets are those that the sandbox has placeholders of.
	Secrets []Secret
	// Requests narrow what may be asked of the hosts that they speak of; nil is
	// nothing.
	Requests *rule.Requests
	// Value reads the value of a secret, of any goroutine. It must not be nil where
	// there are Secrets, and what it returns is kept for no longer than the request.
	Value func(ctx context.Context, name string) (string, error)
	// Used is told of each request into which secrets were put. It must not block; it
	// may be nil.
	Used func(Use)
}

// Secret is a secret that some hosts may get.
type Secret struct {
	Name string
	// Placeholder is the text that stands for it; see NewPlaceholder.
	Placeholder string
	// Hosts are those that may get it.
	Hosts []rule.Host
	// Headers are the only ones in which it is replaced; empty is any.
	Headers []string
	// Query lets it be replaced in the query as well.
	Query bool
}

// Interceptor opens the TLS of one sandbox. It is safe for concurrent use and
// never changes.
type Interceptor struct {
	authority *Authority
	roots     *x509.CertPool
	secrets   []Secret
	requests  *rule.Requests
	value     func(context.Context, string) (string, error)
	used      func(Use)
}

// New makes an Interceptor.
func New(o Options) (*Interceptor, error) {
	if o.Authority == nil || len(o.Secrets) > 0 && o.Value == nil {
		return nil, errors.New("make interceptor: it has no authority, or no source of values")
	}
	i := &Interceptor{
		authority: o.Authority, roots: o.Roots, secrets: slices.Clone(o.Secrets), requests: o.Requests, value: o.Value, used: o.Used,
	}
	for _, s := range i.secrets {
		if !isPlaceholder(s.Placeholder) {
			return nil, fmt.Errorf("make interceptor: secret %s has no placeholder of our form", s.Name)
		}
	}
	if i.used == nil {
		i.used = func(Use) {}
	}
	return i, nil
}

// Opens says whether the TLS of a connection is to be opened. Where requests are
// narrowed every port counts: another one would be a way around.
func (i *Interceptor) Opens(n rule.Name, port uint16) bool {
	return i.requests.SpeaksOf(n) || len(i.boundTo(n, port)) > 0
}

// boundTo are the secrets that may go there.
func (i *Interceptor) boundTo(n rule.Name, port uint16) []Secret {
	var out []Secret
	for _, s := range i.secrets {
		if slices.ContainsFunc(s.Hosts, func(h rule.Host) bool { return h.Matches(n, port) }) {
			out = append(out, s)
		}
	}
	return out
}

// Plain judges a request that is in the clear. No secret goes that way.
func (i *Interceptor) Plain(n rule.Name, port uint16, q *inspect.Request) *rule.Refusal {
	header := http.Header{}
	for name, value := range q.Fields() {
		header.Add(name, value)
	}
	for _, s := range i.secrets {
		if where := foundIn(s, header, q.Target); where != "" {
			return &rule.Refusal{
				Rule: rule.RuleSecret, Reason: fmt.Sprintf("the placeholder of the secret %s is in the %s of a request without TLS, where no secret goes", s.Name, where),
			}
		}
	}
	target := q.Target
	if _, rest, whole := strings.Cut(target, "://"); whole {
		_, path, _ := strings.Cut(rest, "/")
		target = "/" + path
	}
	return i.requests.Judge(n, q.Method, target)
}

// shown is foreign text as it may stand in a refusal.
func shown(s string) string {
	const limit = 200
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
}
