package image

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// AliasHint is the sentence that tells an operator how to let a name stand for
// another image.
func AliasHint(ref string) string {
	return `or an operator lets the name stand for an image that is here, with a line in the policy file such as image_aliases: {"` + ref + `": "host"}`
}

// classify turns what went wrong with a registry into what a caller may read.
// Codes are about the caller of Cloche: that a registry wants a login is no fault
// of the login to Cloche.
func (r *remote) classify(ctx context.Context, e *endpoint, what string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	if ctx.Err() != nil {
		return fromContext(ctx, r.ref, err)
	}
	ref := r.ref.Familiar()
	if code := statusOf(err); code != 0 {
		return r.classifyStatus(e, code, what, err)
	}
	if isDiskFull(err) {
		return diskFull(ref, err)
	}
	certificate, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	var out *api.Error
	unreached := noConnection(err)
	switch {
	case errors.Is(err, errCredentials):
		return api.Errorf(api.CodeUnavailable, "image %q: the login for %s cannot be read", ref, e.host).
			WithHint("look at the Docker configuration of the user that Cloche runs as, and at its credential helper").WithCause(err)
	case errors.Is(err, errPlain):
		return api.Errorf(api.CodeUnavailable, "image %q: %s speaks plain HTTP, or leads to a host that does", ref, e.host).
			WithHint("the operator may name the host among the insecure registries").WithCause(err)
	case errors.Is(err, errLinkLocal):
		return api.Errorf(api.CodeUnavailable, "image %q: %s leads to a link-local address, which is no registry", ref, e.host).
			WithHint("check the name of the registry, and where it resolves to on this machine").WithCause(err)
	case errors.Is(err, errLoopback):
		return api.Errorf(api.CodeUnavailable, "image %q: %s leads to a loopback address of this machine", ref, e.host).
			WithHint("use another registry; where this is meant, the operator names that address among the insecure registries").WithCause(err)
	case isCertificate:
		return api.Errorf(api.CodeUnavailable, "image %q: the certificate of %s is not trusted", ref, e.host).
			WithHint("add its authority to this machine's, or name the host among the insecure registries").WithCause(certificate)
	case unreached != "" && isTimeout(err):
		out = api.Errorf(api.CodeTimeout, "image %q cannot be fetched: %s did not answer within %s: %s", ref, e.host, min(dialTimeout, r.timeout), unreached)
	case unreached != "":
		out = api.Errorf(api.CodeUnavailable, "image %q cannot be fetched: %s cannot be reached: %s", ref, e.host, unreached)
	case errors.Is(err, errSilent) || isTimeout(err):
		out = api.Errorf(api.CodeTimeout, "image %q: %s did not answer within %s when asked for %s", ref, e.host, r.timeout, what)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		out = api.Errorf(api.CodeUnavailable, "image %q: %s broke off while sending %s", ref, e.host, what)
	default:
		out = api.Errorf(api.CodeUnavailable, "image %q: %s cannot be reached for %s", ref, e.host, what)
	}
	out.Retryable, out.Field = true, "image"
	if unreached != "" {
		return out.WithHint("`cloche image ls` lists the images that are here; check the name, pull it from a mirror or import it; %s", AliasHint(ref)).WithCause(err)
	}
	return out.WithHint("try again later, pull it from a mirror or import it; %s", AliasHint(ref)).WithCause(err)
}

func (r *remote) classifyStatus(e *endpoint, code int, what string, err error) error {
	ref := r.ref.Familiar()
	var out *api.Error
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		out = api.Errorf(api.CodeNotFound, "image %q: %s does not show it without a login, or there is no such image", ref, e.host).
			WithHint("check the name; log in with `docker login %s` as the user that Cloche runs as; %s", e.host, AliasHint(ref))
	case code == http.StatusNotFound:
		out = api.Errorf(api.CodeNotFound, "image %q: %s has no such image or tag", ref, e.host).
			WithHint("check the name and the tag; %s", AliasHint(ref))
	case code == http.StatusTooManyRequests:
		out = api.Errorf(api.CodeNoCapacity, "image %q: %s takes no more requests from here for now", ref, e.host).
			WithHint("log in to it, use a mirror, or wait; %s", AliasHint(ref))
		out.Retryable, out.RetryAfterMS = true, r.guard.wait().Milliseconds()
	case code >= 500:
		out = api.Errorf(api.CodeUnavailable, "image %q: %s answered %d when asked for %s", ref, e.host, code, what).
			WithHint("try again later, or use a mirror; %s", AliasHint(ref))
		out.Retryable, out.RetryAfterMS = true, r.guard.wait().Milliseconds()
	default:
		out = api.Errorf(api.CodeUnavailable, "image %q: %s answered %d when asked for %s", ref, e.host, code, what).
			WithHint("check that it is a registry; %s", AliasHint(ref))
	}
	out.Field = "image"
	return out.WithCause(err)
}

func statusOf(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return e.StatusCode
	}
	return 0
}

// fromContext is the error of what its caller gave up.
func fromContext(ctx context.Context, ref api.ImageRef, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e := api.Errorf(api.CodeTimeout, "image %q: it was not here in the time that was given", ref.Familiar()).
			WithHint("ask again: what has come so far is kept").WithCause(err)
		e.Retryable = true
		return e
	}
	return api.Errorf(api.CodeCanceled, "image %q: the pull was canceled", ref.Familiar()).WithCause(err)
}

// noConnection says why there is no connection to a registry; empty is another error.
// Addresses are left out: they are the daemon's to know.
func noConnection(err error) string {
	dial, ok := errors.AsType[*net.OpError](err)
	if !ok || dial.Op != "dial" && dial.Op != "proxyconnect" {
		return ""
	}
	name, isName := errors.AsType[*net.DNSError](err)
	switch {
	case dial.Op == "proxyconnect":
		return "the proxy that this machine is set to use takes no connection"
	case isName && name.IsNotFound:
		return "its name has no address here"
	case isName:
		return "no name server told its address"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	}
	return "there is no connection to it"
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && t.Timeout()
}

func isDiskFull(err error) bool {
	return hostfile.IsFull(err)
}

func diskFull(ref string, err error) error {
	e := api.Errorf(api.CodeNoCapacity, "image %q: no space is left for it", ref).
		WithHint("free some with `cloche image prune`, or give Cloche's home more").WithCause(err)
	e.Retryable = true
	return e
}
