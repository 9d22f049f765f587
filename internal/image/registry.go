package image

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cloche-dev/cloche/api"
)

// RegistryConfig says how registries are reached. Who may pull what is policy's.
type RegistryConfig struct {
	// Mirrors are asked before the registry itself: by the registry's host, such
	// as "docker.io", each "host[:port]" or "host[:port]/prefix".
	Mirrors map[string][]string
	// Insecure are hosts, with the port where one is used, for which plain HTTP
	// and certificates of unknown authorities will do. Loopback addresses may
	// always speak plain HTTP.
	Insecure []string
	// Timeout is how long a registry may say nothing; 0 is 30 seconds. Nothing waits longer
	// than dialTimeout for a connection, with the look-up of the name.
	Timeout time.Duration
}

const (
	defaultRegistryTimeout = 30 * time.Second
	dialTimeout            = 5 * time.Second
	handshakeTimeout       = 10 * time.Second
	maxManifest            = 4 << 20
	maxConfigFile          = 8 << 20
)

// remote is a repository while something is pulled from it.
type remote struct {
	ref     api.ImageRef
	timeout time.Duration
	guard   *guard
	// endpoints serve the repository, the best first.
	endpoints []*endpoint
}

// endpoint is one registry that has the repository.
type endpoint struct {
	host, repo string
	insecure   bool

	mu     sync.Mutex
	client *http.Client // once it is known how to log in
	base   string
}

func newRemote(ref api.ImageRef, c RegistryConfig) *remote {
	if c.Timeout <= 0 {
		c.Timeout = defaultRegistryTimeout
	}
	r := &remote{ref: ref, timeout: c.Timeout, guard: newGuard(c)}
	for _, m := range c.Mirrors[ref.Registry] {
		host, prefix, _ := strings.Cut(strings.TrimSuffix(m, "/"), "/")
		repo := ref.Repository
		if prefix != "" {
			repo = prefix + "/" + repo
		}
		r.endpoints = append(r.endpoints, &endpoint{host: host, repo: repo, insecure: r.guard.lax(host)})
	}
	r.endpoints = append(r.endpoints, &endpoint{host: ref.Registry, repo: ref.Repository, insecure: r.guard.lax(ref.Registry)})
	r.guard.local = slices.ContainsFunc(r.endpoints, func(e *endpoint) bool { return loopback(hostname(e.host)) })
	return r
}

// close lets connections go.
func (r *remote) close() {
	r.guard.strict.CloseIdleConnections()
	r.guard.loose.CloseIdleConnections()
}

// prefer puts an endpoint that has answered first.
func (r *remote) prefer(e *endpoint) {
	i := slices.Index(r.endpoints, e)
	r.endpoints = append([]*endpoint{e}, slices.Delete(slices.Clone(r.endpoints), i, i+1)...)
}

// connect asks the registry how to log in, and does so, at most once.
func (r *remote) connect(ctx context.Context, e *endpoint) (*http.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil {
		return e.client, nil
	}
	options := []name.Option{name.StrictValidation}
	if e.insecure {
		options = append(options, name.Insecure)
	}
	repo, err := name.NewRepository(e.host+"/"+e.repo, options...)
	if err != nil {
		return nil, fmt.Errorf("name %s/%s: %w", e.host, e.repo, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	auth, err := credentials(ctx, repo)
	if err != nil {
		return nil, err
	}
	// The scheme is settled by what answers; the guard has the last word on it.
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, r.guard, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	e.client = &http.Client{Transport: t}
	e.base = "https://" + repo.RegistryStr() + "/v2/" + repo.RepositoryStr()
	return e.client, nil
}

// credentials looks for a login in the usual configuration of Docker and Podman.
// It may ask a program, which may hang: then it is left to itself.
func credentials(ctx context.Context, repo name.Repository) (authn.Authenticator, error) {
	type answer struct {
		auth authn.Authenticator
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
		got <- answer{auth, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return nil, fmt.Errorf("%w: %w", errCredentials, a.err)
		}
		return a.auth, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errCredentials, ctx.Err())
	}
}

// get asks an endpoint for something of the repository. The caller closes the
// body of the answer, which has one of the statuses 200 and 206.
func (r *remote) get(ctx context.Context, e *endpoint, path string, header http.Header) (*http.Response, error) {
	client, err := r.connect(ctx, e)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for key, values := range header {
		req.Header[key] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	return nil, &statusError{code: resp.StatusCode}
}

// manifest fetches a manifest or index by tag or digest from the first endpoint
// that has it, and returns it with its digest.
func (r *remote) manifest(ctx context.Context, reference string) ([]byte, string, error) {
	var last error
	for _, e := range slices.Clone(r.endpoints) {
		body, digest, err := r.manifestFrom(ctx, e, reference)
		if err == nil {
			r.prefer(e)
			return body, digest, nil
		}
		if last = r.classify(ctx, e, "the manifest", err); ctx.Err() != nil {
			break
		}
	}
	return nil, "", last
}

func (r *remote) manifestFrom(ctx context.Context, e *endpoint, reference string) ([]byte, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*r.timeout, errSilent)
	defer cancel()
	resp, err := r.get(ctx, e, "/manifests/"+reference, http.Header{"Accept": {
		string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
	}})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, "", fmt.Errorf("read manifest: %w", err)
	}
	if len(body) > maxManifest {
		return nil, "", api.Errorf(api.CodeTooLarge, "image %q: its manifest has more than %d bytes", r.ref.Familiar(), maxManifest)
	}
	sum := sha256.Sum256(body)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	want := reference
	if !api.ValidDigest(want) {
		want = resp.Header.Get("Docker-Content-Digest")
	}
	if api.ValidDigest(want) && want != digest {
		return nil, "", badLayer("%s sent a manifest with the digest %s where %s was asked for", e.host, digest, want)
	}
	return body, digest, nil
}

// guard is what every request goes through: it keeps plain HTTP and unknown
// certificates to hosts that are allowed them, and dials no address of this
// machine's own network link, where clouds keep credentials.
type guard struct {
	strict, loose *http.Transport
	insecure      []string
	// local is set where a registry on the loopback device was asked for. Else
	// nothing there is asked, wherever a registry points: other services of this
	// machine listen there.
	local bool

	mu         sync.Mutex
	retryAfter time.Duration
}

func newGuard(c RegistryConfig) *guard {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: refuseLinkLocal}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: c.Timeout, IdleConnTimeout: time.Minute,
		MaxIdleConnsPerHost: layersAtOnce, MaxResponseHeaderBytes: 1 << 20,
		// What is fetched has a digest; nothing is to be unpacked on the way.
		DisableCompression: true,
	}
	loose := t.Clone()
	loose.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // only for hosts that the operator names
	return &guard{strict: t, loose: loose, insecure: c.Insecure}
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	lax := g.lax(req.URL.Host)
	if loopback(req.URL.Hostname()) && !g.local && !lax {
		return nil, fmt.Errorf("%w: %s", errLoopback, req.URL.Host)
	}
	if req.URL.Scheme != "https" && !lax && !loopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%w: %s", errPlain, req.URL.Host)
	}
	t := g.strict
	if lax {
		t = g.loose
	}
	resp, err := t.RoundTrip(req)
	if err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.retryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	return resp, err
}

// lax reports whether the operator trusts the way to host.
func (g *guard) lax(host string) bool { return slices.Contains(g.insecure, host) }

func (g *guard) wait() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.retryAfter
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// hostname is a host without its port.
func hostname(host string) string {
	u := url.URL{Host: host}
	return u.Hostname()
}

func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().Unmap().IsLinkLocalUnicast() {
		return fmt.Errorf("%w: %s", errLinkLocal, a.Addr())
	}
	return nil
}

// retryAfter reads the header of that name: seconds or a date; 0 is unknown.
func retryAfter(value string, now time.Time) time.Duration {
	const most = 24 * time.Hour
	if n, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, most)
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return min(at.Sub(now), most)
	}
	return 0
}

var (
	errPlain       = errors.New("plain HTTP is not allowed to this host")
	errLoopback    = errors.New("a registry elsewhere leads to a loopback address of this machine")
	errLinkLocal   = errors.New("a link-local address is no registry")
	errSilent      = errors.New("the registry said nothing for too long")
	errCredentials = errors.New("the login for the registry cannot be read")
)

// statusError is an answer that is not what was asked for.
type statusError struct{ code int }

func (e *statusError) Error() string { return "the registry answered " + strconv.Itoa(e.code) }
