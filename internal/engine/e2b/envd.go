package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// envdPort is where envd serves a sandbox.
	envdPort = "49983"
	// pingInterval is how often envd is asked to say that a stream is alive. A stream that is silent
	// for streamSilence is given up: envd says so every 90 seconds if it does not read the request.
	pingInterval  = 20 * time.Second
	streamSilence = 200 * time.Second
	// maxMessageBytes bounds a message of envd.
	maxMessageBytes = 4 << 20
)

// envd is the data plane of one sandbox. Everything is done as root inside.
type envd struct {
	http    *http.Client
	base    *url.URL
	headers http.Header
	process envdpb.ProcessClient
}

// sharedDomains are those whose sandboxes are all behind one host, and are told apart by headers.
func sharedDomains() []string { return []string{"e2b.app", "e2b.dev", "e2b.pro"} }

// envdOf returns the data plane of a sandbox.
func (s *service) envdOf(c created) (*envd, error) {
	domain := c.Domain
	if domain == "" {
		domain = s.domain
	}
	var base *url.URL
	switch {
	case s.sandboxes != nil:
		base = s.sandboxes
	case domain == "":
		base = s.api
	default:
		host := envdPort + "-" + c.SandboxID + "." + domain
		if slices.Contains(sharedDomains(), domain) {
			host = "sandbox." + domain
		}
		u, err := url.Parse(s.api.Scheme + "://" + host)
		if err != nil || u.Host != host {
			return nil, errors.New("the service names a domain that is not valid")
		}
		base = u
	}
	v := &envd{base: base, headers: http.Header{
		"E2b-Sandbox-Id":          {c.SandboxID},
		"E2b-Sandbox-Port":        {envdPort},
		"Authorization":           {"Basic cm9vdDo="}, // root, without a password
		"Keepalive-Ping-Interval": {strconv.Itoa(int(pingInterval / time.Second))},
	}}
	if c.EnvdToken != "" {
		v.headers.Set("X-Access-Token", c.EnvdToken)
	}
	v.http = &http.Client{Transport: withHeaders{s.http.Transport, v.headers}, CheckRedirect: s.http.CheckRedirect}
	// E2B's clients speak JSON, so every service understands it.
	v.process = envdpb.NewProcessClient(v.http, base.String(), connect.WithProtoJSON(), connect.WithReadMaxBytes(maxMessageBytes))
	return v, nil
}

// withHeaders sets headers on requests.
type withHeaders struct {
	http.RoundTripper
	headers http.Header
}

// RoundTrip implements http.RoundTripper.
func (t withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k, v := range t.headers {
		r.Header[k] = v
	}
	return t.RoundTripper.RoundTrip(r)
}

// upload writes files from the body of a multipart form.
func (v *envd) upload(ctx context.Context, u *upload) error {
	at := v.base.JoinPath("/files")
	at.RawQuery = url.Values{"username": {"root"}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(u.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", u.contentType)
	res, err := v.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode != http.StatusOK {
		return refusalOf(res, data)
	}
	return err
}

// run runs a program and returns its output, which is bounded, when it ended with status 0.
func (v *envd) run(ctx context.Context, argv ...string) (string, error) {
	no := false
	p, err := v.start(ctx, &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: argv[0], Args: argv[1:], Cwd: root()}, Stdin: &no})
	if err != nil {
		return "", err
	}
	defer p.close()
	var out strings.Builder
	for {
		data, err := p.next()
		if ended, ok := errors.AsType[*endedError](err); ok {
			if ended.status != 0 {
				return "", fmt.Errorf("%s ended with status %d: %s", argv[0], ended.status, clip(out.String()))
			}
			return out.String(), nil
		}
		if err != nil {
			return "", err
		}
		if out.Len() < maxAnswer {
			out.Write(data)
		}
	}
}

// root is the working directory of what is started.
func root() *string {
	dir := "/"
	return &dir
}

// kill kills a process by its tag. One that is not there is no error.
func (v *envd) kill(ctx context.Context, tag string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := v.process.SendSignal(ctx, connect.NewRequest(&envdpb.SendSignalRequest{Process: tagged(tag), Signal: envdpb.Signal_SIGNAL_SIGKILL}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	return err
}

func tagged(tag string) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Tag{Tag: tag}}
}

// endedError says that a process has ended. Its status is -1 if a signal ended it.
type endedError struct {
	status int
	text   string
}

// Error implements error.
func (e *endedError) Error() string { return "the process ended: " + e.text }

// proc is a process inside and the stream of its output.
type proc struct {
	pid    uint32
	stream eventStream
	cancel context.CancelFunc
	silent *time.Timer
}

// eventStream is the stream of a Start or of a Connect.
type eventStream interface {
	Receive() bool
	Event() *envdpb.ProcessEvent
	Err() error
	Close() error
}

type startStream struct {
	*connect.ServerStreamForClient[envdpb.StartResponse]
}

// Event implements eventStream.
func (s startStream) Event() *envdpb.ProcessEvent { return s.Msg().GetEvent() }

type connectStream struct {
	*connect.ServerStreamForClient[envdpb.ConnectResponse]
}

// Event implements eventStream.
func (s connectStream) Event() *envdpb.ProcessEvent { return s.Msg().GetEvent() }

// start starts a process. ctx bounds its output stream too; the process goes on without it.
func (v *envd) start(ctx context.Context, req *envdpb.StartRequest) (*proc, error) {
	return follow(ctx, func(ctx context.Context) (eventStream, error) {
		s, err := v.process.Start(ctx, connect.NewRequest(req))
		return startStream{s}, err
	})
}

// connect follows a process by its tag.
func (v *envd) connect(ctx context.Context, tag string) (*proc, error) {
	return follow(ctx, func(ctx context.Context) (eventStream, error) {
		s, err := v.process.Connect(ctx, connect.NewRequest(&envdpb.ConnectRequest{Process: tagged(tag)}))
		return connectStream{s}, err
	})
}

// follow opens a stream of a process and waits for its start.
func follow(ctx context.Context, open func(context.Context) (eventStream, error)) (*proc, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &proc{cancel: cancel, silent: time.AfterFunc(streamSilence, cancel)}
	var err error
	if p.stream, err = open(ctx); err != nil {
		p.silent.Stop()
		cancel()
		return nil, err
	}
	for {
		if !p.stream.Receive() {
			err := p.broken()
			p.close()
			return nil, err
		}
		p.silent.Reset(streamSilence)
		if s := p.stream.Event().GetStart(); s != nil {
			p.pid = s.GetPid()
			return p, nil
		}
	}
}

// next returns the next output, or an endedError. The data is valid until the next call.
func (p *proc) next() ([]byte, error) {
	for p.stream.Receive() {
		p.silent.Reset(streamSilence)
		switch ev := p.stream.Event(); {
		case ev.GetEnd() != nil:
			end := ev.GetEnd()
			status := int(end.GetExitCode())
			if !end.GetExited() && status == 0 {
				status = -1
			}
			return nil, &endedError{status: status, text: clip(end.GetStatus())}
		case len(ev.GetData().GetStdout()) > 0:
			return ev.GetData().GetStdout(), nil
		}
	}
	return nil, p.broken()
}

// broken is why a stream ended before the process did.
func (p *proc) broken() error {
	if err := p.stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// close gives the stream up. The process goes on.
func (p *proc) close() {
	p.silent.Stop()
	p.cancel()
	p.stream.Close()
}
