package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cloche-dev/cloche/api"
)

const (
	// usualDomain is E2B's own service.
	usualDomain = "e2b.app"
	// maxAnswer bounds an answer of the service, in bytes.
	maxAnswer = 4 << 20
	// maxMessage bounds what is repeated of an error of the service, in bytes.
	maxMessage = 300
	// maxRetries and maxRetryAfter bound the repeats of a request that the service limits.
	maxRetries    = 3
	maxRetryAfter = 10 * time.Second
)

// service is the control plane of an E2B-compatible service.
type service struct {
	http *http.Client
	key  string
	api  *url.URL
	// sandboxes is where the data plane of every sandbox is; nil is a domain.
	sandboxes *url.URL
	// domain is the one of sandboxes if the service names none; empty is the API's host.
	domain string
}

// newService returns the client of a service, or what is wrong with the options.
func newService(o Options) (*service, *api.Problem) {
	s := &service{key: o.APIKey, http: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			// A connection whose other end is gone, such as after a sleep of this machine, is noticed
			// within a minute.
			HTTP2: &http.HTTP2Config{SendPingTimeout: pingInterval, PingTimeout: pingInterval},
			DialContext: (&net.Dialer{Timeout: callTimeout, KeepAliveConfig: net.KeepAliveConfig{
				Enable: true, Idle: pingInterval, Interval: pingInterval / 2, Count: 3,
			}}).DialContext,
			TLSHandshakeTimeout: callTimeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
		},
		// The key is for one host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	at := o.APIURL
	switch {
	case at == "":
		s.domain, at = usualDomain, "https://api."+usualDomain
	case !strings.Contains(at, "://"):
		s.domain, at = at, "https://api."+at
	}
	var problem *api.Problem
	if s.api, problem = urlOf("e2b.api_url", at); problem != nil {
		return s, problem
	}
	if o.SandboxURL != "" {
		if s.sandboxes, problem = urlOf("e2b.sandbox_url", o.SandboxURL); problem != nil {
			return s, problem
		}
	}
	if o.APIKey == "" {
		return s, &api.Problem{What: "no key for a service with E2B's API is set", Mend: "set E2B_API_KEY, or e2b.api_key in the settings file"}
	}
	if strings.ContainsFunc(o.APIKey, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return s, &api.Problem{What: "the key for the service has characters that no header can have", Mend: "set e2b.api_key to the key alone"}
	}
	return s, nil
}

// urlOf parses the address of a service, whose requests carry a key.
func urlOf(name, text string) (*url.URL, *api.Problem) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, &api.Problem{What: name + " is no URL of a service", Mend: "write it as https://api.example.com"}
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, &api.Problem{What: name + " has no TLS: the key could be read on the way", Mend: "use https://, or an address of this machine"}
	}
	return u, nil
}

// created is the answer to a create, and part of the answer to a get.
type created struct {
	SandboxID   string `json:"sandboxID"`
	EnvdVersion string `json:"envdVersion"`
	EnvdToken   string `json:"envdAccessToken"`
	Domain      string `json:"domain"`
}

// described is the answer to a get, and an element of a list.
type described struct {
	created
	State    string            `json:"state"`
	Metadata map[string]string `json:"metadata"`
	Internet *bool             `json:"allowInternetAccess"`
}

// metric is an element of the answer with metrics.
type metric struct {
	Time    int64 `json:"timestampUnix"` // seconds
	MemUsed int64 `json:"memUsed"`       // bytes
}

// The keys of the metadata by which the engine finds its sandboxes.
const (
	metaOwner = "cloche-owner"
	metaID    = "cloche-id"
)

// metaMounts is the key by which CubeSandbox mounts directories of its own machine.
const metaMounts = "host-mount"

// sandboxID is what IDs of sandboxes look like. They become parts of paths and of host names.
var sandboxID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,99}$`)

// refusal is an error of the service.
type refusal struct {
	status  int
	message string
	after   time.Duration // of Retry-After
}

// Error implements error.
func (r *refusal) Error() string {
	return fmt.Sprintf("the service answered %d: %s", r.status, r.message)
}

// hasStatus reports whether an error is the service's, with this status.
func hasStatus(err error, status int) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == status
}

// call sends a request and decodes the answer into out, unless out is nil. It repeats a request that the
// service limits. The header of the answer is returned.
func (s *service) call(ctx context.Context, method, path string, query url.Values, in, out any) (http.Header, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
	}
	for try := 0; ; try++ {
		h, err := s.once(ctx, method, path, query, body, out)
		r, ok := errors.AsType[*refusal](err)
		if !ok || r.status != http.StatusTooManyRequests || try == maxRetries || r.after > maxRetryAfter {
			return h, err
		}
		select {
		case <-time.After(max(r.after, 100*time.Millisecond)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *service) once(ctx context.Context, method, path string, query url.Values, body []byte, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := s.api.JoinPath(path)
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-KEY", s.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the service's answer: %w", err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return nil, refusalOf(res, data)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("the service's answer has more than %d bytes", maxAnswer)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return nil, fmt.Errorf("decode the service's answer: %w", err)
		}
	}
	return res.Header, nil
}

// refusalOf reads an error of the service or of a proxy before it.
func refusalOf(res *http.Response, data []byte) *refusal {
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &said) != nil || said.Message == "" {
		said.Message = http.StatusText(res.StatusCode)
	}
	r := &refusal{status: res.StatusCode, message: clip(said.Message)}
	if n, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil {
		r.after = time.Duration(n) * time.Second
	}
	return r
}

// clip is a text of the service in one line of bounded length, without control characters.
func clip(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }), " ")
	if len(text) > maxMessage {
		text = text[:maxMessage] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// create makes a sandbox.
func (s *service) create(ctx context.Context, template string, lifetime time.Duration, meta map[string]string) (created, error) {
	var out created
	_, err := s.call(ctx, http.MethodPost, "/sandboxes", nil, map[string]any{
		"templateID": template, "timeout": seconds(lifetime), "metadata": meta,
		"secure": true, "autoPause": false, "allow_internet_access": false,
	}, &out)
	if err == nil && !sandboxID.MatchString(out.SandboxID) {
		err = errors.New("the service's answer has no ID of a sandbox")
	}
	return out, err
}

func seconds(d time.Duration) int64 { return int64(max(d/time.Second, 1)) }

// get describes a sandbox.
func (s *service) get(ctx context.Context, id string) (described, error) {
	var out described
	_, err := s.call(ctx, http.MethodGet, "/sandboxes/"+id, nil, nil, &out)
	if err == nil && out.SandboxID != id {
		err = errors.New("the service's answer describes another sandbox")
	}
	return out, err
}

// extend sets when a sandbox ends, from now on.
func (s *service) extend(ctx context.Context, id string, lifetime time.Duration) error {
	_, err := s.call(ctx, http.MethodPost, "/sandboxes/"+id+"/timeout", nil, map[string]any{"timeout": seconds(lifetime)}, nil)
	return err
}

// remove removes a sandbox. One that is not there is no error.
func (s *service) remove(ctx context.Context, id string) error {
	_, err := s.call(ctx, http.MethodDelete, "/sandboxes/"+id, nil, nil, nil)
	if hasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// metrics returns the newest metric of a sandbox.
func (s *service) metrics(ctx context.Context, id string) (metric, error) {
	var list []metric
	if _, err := s.call(ctx, http.MethodGet, "/sandboxes/"+id+"/metrics", nil, nil, &list); err != nil {
		return metric{}, err
	}
	var newest metric
	for _, m := range list {
		if m.Time >= newest.Time {
			newest = m
		}
	}
	return newest, nil
}

// maxPages bounds a list, of which a page has 100 sandboxes.
const maxPages = 1000

// list returns the sandboxes whose metadata has these values. The service's filter is not relied on.
func (s *service) list(ctx context.Context, meta map[string]string) ([]described, error) {
	filter := url.Values{}
	for k, v := range meta {
		filter.Set(url.QueryEscape(k), url.QueryEscape(v))
	}
	query := url.Values{"metadata": {filter.Encode()}, "limit": {"100"}}
	var out []described
	path := "/v2/sandboxes"
	for range maxPages {
		var page []described
		h, err := s.call(ctx, http.MethodGet, path, query, nil, &page)
		if path == "/v2/sandboxes" && (hasStatus(err, http.StatusNotFound) || hasStatus(err, http.StatusMethodNotAllowed)) {
			path = "/sandboxes" // of an older service, in one page
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			if sandboxID.MatchString(d.SandboxID) && has(d.Metadata, meta) {
				out = append(out, d)
			}
		}
		next := h.Get("X-Next-Token")
		if next == "" {
			return out, nil
		}
		query.Set("nextToken", next)
	}
	return nil, fmt.Errorf("the service's list has more than %d pages", maxPages)
}

func has(all, some map[string]string) bool {
	for k, v := range some {
		if all[k] != v {
			return false
		}
	}
	return true
}

// classify gives an error of the service a code. what names the operation and the sandbox.
func classify(ctx context.Context, what string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	retryable := func(e *api.Error) error {
		e.Retryable = true
		return e.WithCause(err)
	}
	r, refused := errors.AsType[*refusal](err)
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		return api.Errorf(api.CodeCanceled, "%s: canceled", what).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return retryable(api.Errorf(api.CodeTimeout, "%s: the service did not answer in time", what))
	case !refused:
		return retryable(api.Errorf(api.CodeUnavailable, "%s: the service cannot be reached", what))
	case r.status == http.StatusUnauthorized || r.status == http.StatusForbidden:
		return api.Errorf(api.CodeUnavailable, "%s: the service refuses the key: %s", what, r.message).
			WithHint("check E2B_API_KEY or e2b.api_key").WithCause(err)
	case r.status == http.StatusTooManyRequests:
		return retryable(api.Errorf(api.CodeNoCapacity, "%s: the service limits its requests: %s", what, r.message))
	case r.status == http.StatusServiceUnavailable || r.status == http.StatusInsufficientStorage:
		return retryable(api.Errorf(api.CodeNoCapacity, "%s: the service has no capacity: %s", what, r.message))
	case r.status >= 500:
		return retryable(api.Errorf(api.CodeUnavailable, "%s: the service failed: %s", what, r.message))
	}
	return api.Errorf(api.CodeUnavailable, "%s: the service refuses it (%d): %s", what, r.status, r.message).WithCause(err)
}
