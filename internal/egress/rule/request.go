package rule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// RuleRequests is the rule of a refusal for a host of which only some requests are
// allowed, and this one is not.
const RuleRequests = "egress.requests"

// Request lets some requests reach a host. Its text form is
// [METHOD[,METHOD]] HOST[PATH[,PATH]], as in
//
//	GET,HEAD api.example.com             these methods, every path
//	api.example.com/v1/*                 every method, and what is below a path
//	POST *.example.com/a,/b/*            one path, and what is below another
type Request struct {
	// Host is a canonical Name, "*." before one, or "*".
	Host string
	// Methods are all that may be used; empty is any.
	Methods []string
	// Paths are all that may be asked for; empty is any. One that ends in "/*" is
	// everything below it, every other is that path alone.
	Paths []string
}

const (
	maxMethod = 32
	maxPath   = 2048
)

// ParseRequest reads the text form. The error is an *Error.
func ParseRequest(s string) (Request, error) {
	methods, rest, both := strings.Cut(s, " ")
	if !both {
		methods, rest = "", s
	}
	host, _, _ := strings.Cut(rest, "/")
	r := Request{Host: host}
	if paths := rest[len(host):]; paths != "" {
		r.Paths = strings.Split(paths, ",")
	}
	if both {
		r.Methods = strings.Split(methods, ",")
	}
	r, err := r.Canonical()
	if e := (*Error)(nil); errors.As(err, &e) {
		e.Text = quote(s)
		return Request{}, e
	}
	return r, nil
}

// String is the text form.
func (r Request) String() string {
	var b strings.Builder
	if len(r.Methods) > 0 {
		b.WriteString(strings.Join(r.Methods, ",") + " ")
	}
	return b.String() + r.Host + strings.Join(r.Paths, ",")
}

// Canonical is r with its host in canonical form, or an *Error.
func (r Request) Canonical() (Request, error) {
	bad := func(why, hint string) (Request, error) {
		return Request{}, &Error{Text: quote(r.String()), Why: why, Hint: hint}
	}
	if r.Host != "*" {
		below, wild := strings.CutPrefix(r.Host, "*.")
		n, err := ParseName(below)
		if e := (*NameError)(nil); errors.As(err, &e) {
			return bad(e.Error(), "requests are seen at names, on ports 80 and 443")
		}
		if r.Host = string(n); wild {
			r.Host = "*." + r.Host
		}
	}
	for _, m := range r.Methods {
		if m == "" || len(m) > maxMethod || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" {
			return bad("the method "+quote(m)+" can't be allowed", "write GET, POST and the like, in capital letters")
		}
	}
	for _, p := range r.Paths {
		below := strings.TrimSuffix(p, "/*")
		if len(p) > maxPath || !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "?#,") || strings.ContainsFunc(p, unseen) || strings.Contains(below, "*") || below != "" && !plainPath(below) {
			return bad("the path "+quote(p)+" can't be compared", `write a path such as "/v1/models", or "/v1/*" for all below it`)
		}
	}
	r.Methods, r.Paths = slices.Clone(r.Methods), slices.Clone(r.Paths)
	return r, nil
}

// unseen is true for what no path holds but as an escape.
func unseen(r rune) bool { return r <= ' ' || r > '~' }

// plainPath is true for a path that no server reads as another one.
func plainPath(p string) bool {
	_, fault := ReadPath(p)
	return fault == PathFine
}

func (r Request) speaksOf(n Name) bool { return coversHost(r.Host, string(n)) }

// About says whether r narrows something that the allowing rule a lets out.
func (r Request) About(a Rule) bool { return !a.Deny && overlaps(r.Host, a.Host) }

func (r Request) allows(method, path string) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
		return false
	}
	return len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(p string) bool {
		below, all := strings.CutSuffix(p, "*")
		return p == path || all && strings.HasPrefix(path, below)
	})
}

// Requests are lists of Request, each of which narrows what the others leave. It
// never changes. The zero value narrows nothing.
type Requests struct{ groups [][]Request }

// CompileRequests checks lists and puts them together. The error is an *Error.
func CompileRequests(groups ...[]Request) (*Requests, error) {
	out := &Requests{}
	for _, g := range groups {
		checked := make([]Request, 0, len(g))
		for _, r := range g {
			r, err := r.Canonical()
			if err != nil {
				return nil, err
			}
			checked = append(checked, r)
		}
		if len(checked) > 0 {
			out.groups = append(out.groups, checked)
		}
	}
	return out, nil
}

// SpeaksOf says whether some rule narrows what may be asked of n, so that its TLS
// has to be opened. A nil Requests speaks of nothing.
func (s *Requests) SpeaksOf(n Name) bool {
	return s != nil && slices.ContainsFunc(s.groups, func(g []Request) bool {
		return slices.ContainsFunc(g, func(r Request) bool { return r.speaksOf(n) })
	})
}

// Judge judges one request; target is the path as it was sent, with or without
// query. In each list that speaks of the host one rule must allow the request.
func (s *Requests) Judge(n Name, method, target string) *Refusal {
	if s == nil {
		return nil
	}
	path, _, _ := strings.Cut(target, "?")
	for _, g := range s.groups {
		spoken, allowed := false, false
		for _, r := range g {
			if r.speaksOf(n) {
				spoken = true
				allowed = allowed || r.allows(method, path)
			}
		}
		switch {
		case !spoken:
		case !plainPath(path):
			return &Refusal{Rule: RuleRequests, Reason: fmt.Sprintf("only some requests to %s are allowed, and the path of this one can be read in two ways", n)}
		case !allowed:
			ask := Request{Host: string(n), Methods: []string{method}, Paths: []string{path}}
			ref := &Refusal{Rule: RuleRequests, Reason: fmt.Sprintf("%s is allowed, but not %s of this path", n, quoteMethod(method))}
			if ask, err := ask.Canonical(); err == nil {
				ref.Allow = ask.String()
			}
			return ref
		}
	}
	return nil
}

// quoteMethod is a method in a form that is safe to show.
func quoteMethod(m string) string {
	if m != "" && len(m) <= maxMethod && strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") == "" {
		return m
	}
	return quote(m)
}

// Opaque says whether an allowing rule would let requests to a host of these lists
// out unseen: it names port 80 or 443 for any protocol.
func (s *Requests) Opaque(r Rule) bool {
	if s == nil || r.Deny || r.Port != 80 && r.Port != 443 {
		return false
	}
	return slices.ContainsFunc(s.groups, func(g []Request) bool {
		return slices.ContainsFunc(g, func(q Request) bool { return overlaps(q.Host, r.Host) })
	})
}
