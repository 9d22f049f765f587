package api

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// EndpointListenAuto leaves the port to the daemon, which says what it chose.
	EndpointListenAuto = "loopback:auto"
	// EndpointListenSocket begins the address of a socket; its path follows.
	EndpointListenSocket = "unix://"
	// DefaultEndpointListen is where an endpoint is inside when the request does not
	// say.
	DefaultEndpointListen = "127.0.0.1:13131"
	// MaxEndpoints is how many endpoints a sandbox may have.
	MaxEndpoints = 16
)

// The targets that are not addresses: a client of the sandbox attaches and gets
// the connections; see Endpoint.Target.
const (
	TargetClient    = "client"
	TargetClientTCP = "client+tcp"
)

// Endpoint is a service of the host at an address of the sandbox's loopback, with or
// without a network.
type Endpoint struct {
	// Name is unique in the sandbox: a letter, then letters, digits and "-", all small.
	Name string `json:"name"`
	// Listen is the address inside, "127.0.0.1:PORT"; empty is DefaultEndpointListen.
	// "localhost" reaches it too, and it is there before anything runs. What was
	// EndpointListenAuto is the address that was found, once there is one. Or it is
	// "unix:///SOCKET", a path inside, outside of workspaces and mounts.
	Listen string `json:"listen,omitempty"`
	// ListenUser is the user inside who alone may connect to a socket, which is that
	// user's; empty is everybody.
	ListenUser string `json:"listen_user,omitempty"`
	// Target is where it leads: "http://HOST[:PORT][/BASE]" or https, of which requests
	// reach what is below BASE; "tcp://HOST:PORT" for bytes as they are; "unix:///SOCKET"
	// and "unix+tcp:///SOCKET" for the same at a socket of the host; or "client" and
	// "client+tcp", where a client attaches to the endpoint and serves it; or
	// "replay:NAME", where a recording answers.
	Target string `json:"target"`
	// Phases are those of a program in which its environment is given to processes:
	// "setup", "post_setup" and "run"; empty is the last two. A process that belongs to
	// no program is in "run".
	Phases []string `json:"phases,omitempty"`
	// Presets add the variables that a kind of SDK reads: "openai", "anthropic".
	Presets []string `json:"presets,omitempty"`
	// Env is given to processes too, as they are started. In a value "{base}" is the
	// address as a URL, "{host}" and "{port}" are its parts; of a socket there is "{path}".
	Env  map[string]string `json:"env,omitempty"`
	HTTP *EndpointHTTP     `json:"http,omitempty"`
	// Audit says what of each request goes on record beside its outline; nil is nothing.
	Audit *EndpointAudit `json:"audit,omitempty"`
	// Probe: it is ready when the target has been connected to once, and not before.
	Probe bool `json:"probe,omitempty"`
	// Limits bound it.
	Limits EndpointLimits `json:"limits,omitzero"`
	// Record names the recording in which what goes through is kept; empty records nothing. The
	// name must be new.
	Record string `json:"record,omitempty"`
	// Replay says how a recording answers, where it is the target; nil is as the zero
	// value says.
	Replay *EndpointReplay `json:"replay,omitempty"`
}

// EndpointHTTP says how requests go on to a target that speaks HTTP.
type EndpointHTTP struct {
	// Methods that are let through; empty is all but CONNECT and TRACE, which never are.
	Methods []string `json:"methods,omitempty"`
	// Paths begin with "/". One that ends in "/*" is everything below it, every other
	// is that path alone; empty is all.
	Paths []string `json:"paths,omitempty"`
	// SetHeaders are set on every request, whatever it brought.
	SetHeaders map[string]string `json:"set_headers,omitempty"`
	// SecretHeaders are set to the values of secrets, which are named here: header to
	// secret.
	SecretHeaders map[string]string `json:"secret_headers,omitempty"`
	// PassHeaders go on although a sandbox's are taken out otherwise: such as
	// "Authorization", "Cookie" and "X-Api-Key".
	PassHeaders []string `json:"pass_headers,omitempty"`
	// BodyFilter is what becomes of requests to a model's API that have the provider do
	// something by itself, such as search the web: "strip" takes that out of them,
	// "refuse" refuses them, "off" lets them through. Empty is "strip" with a preset, and
	// "off" without.
	BodyFilter string `json:"body_filter,omitempty"`
	// Once has a repeated request, while it goes on or after its answer did not
	// arrive, get the answer to the first: those with the same Idempotency-Key and body,
	// and those that an SDK counts in X-Stainless-Retry-Count. A request then goes on
	// for a while when who asked has left.
	Once bool `json:"once,omitempty"`
	// EventKeepAliveMS has a comment be sent in a stream of events when the target said
	// nothing for so long, between two events; 0 is never.
	EventKeepAliveMS int64 `json:"event_keepalive_ms,omitempty"`
	// AllowOrigin lets pages of other origins, in a browser inside, use it.
	AllowOrigin bool `json:"allow_origin,omitempty"`
}

// EndpointAudit says what of requests and answers goes on record beside their outline.
// Values of headers that hold credentials, and those of secrets, never do.
type EndpointAudit struct {
	// Capture is CaptureHeaders, or CaptureBody for headers and bodies.
	Capture string `json:"capture"`
	// MaxBytes is how much of each body; 0 is 2 KiB, and 8 KiB is the most.
	MaxBytes int `json:"max_bytes,omitempty"`
	// RedactHeaders are more headers without their values.
	RedactHeaders []string `json:"redact_headers,omitempty"`
}

// What of requests can go on record.
const (
	CaptureHeaders = "headers"
	CaptureBody    = "body"
)

// EndpointLimits bound an endpoint. Zero is the default that each names.
type EndpointLimits struct {
	// Connections at once; 0 is 256.
	Connections int `json:"connections,omitempty"`
	// Active requests at once, and no more connections to the target; 0 is 64. As many
	// wait, and what comes then is refused.
	Active int `json:"active,omitempty"`
	// RequestBytes bounds the body of a request; 0 is 64 MiB.
	RequestBytes int64 `json:"request_bytes,omitempty"`
	// ResponseBytes bounds the body of a response; 0 is no bound.
	ResponseBytes int64 `json:"response_bytes,omitempty"`
	// RequestsPerSecond bounds how often: what comes before its time is refused, and a
	// second's worth may come at once. Raw connections count as requests. 0 is no bound.
	RequestsPerSecond float64 `json:"requests_per_second,omitempty"`
	// BytesPerSecond bounds how much moves, in both directions together: what is over it
	// waits. 0 is no bound.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
	// ConnectMS bounds connecting to the target; 0 is 5 s.
	ConnectMS int64 `json:"connect_ms,omitempty"`
	// HeaderMS is how long the target may take to begin its response; 0 is 5 min.
	HeaderMS int64 `json:"header_ms,omitempty"`
	// IdleMS ends an exchange on which nothing moved for so long; 0 is 5 min.
	IdleMS int64 `json:"idle_ms,omitempty"`
}

// EndpointState is where an endpoint is in its life.
type EndpointState string

// The states.
const (
	// EndpointBinding: the sandbox is being reached.
	EndpointBinding EndpointState = "binding"
	// EndpointReady: connections are taken inside.
	EndpointReady EndpointState = "ready"
	// EndpointDegraded: it is there, and the last that was tried failed; Reason says why.
	EndpointDegraded EndpointState = "degraded"
	// EndpointDraining: nothing new is taken, and what is under way may end.
	EndpointDraining EndpointState = "draining"
	EndpointClosed   EndpointState = "closed"
	// EndpointFailed: it could not be put in its place; Reason says why.
	EndpointFailed EndpointState = "failed"
)

// EndpointStatus is what is known of an endpoint of a sandbox.
type EndpointStatus struct {
	// Endpoint is what was granted, with its defaults.
	Endpoint Endpoint      `json:"endpoint"`
	State    EndpointState `json:"state"`
	// Reason is why it is degraded or failed, Since is when it came into its state.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// HostView is where the service is for who runs beside the daemon.
	HostView EndpointView `json:"host_view"`
	// SandboxView is where it is for processes inside, with what is exported to them.
	SandboxView EndpointView `json:"sandbox_view"`
	// Attached is how many clients serve it; only with a client as its target.
	Attached int              `json:"attached,omitempty"`
	Counters EndpointCounters `json:"counters"`
}

// EndpointView is an endpoint as it is seen from one side.
type EndpointView struct {
	URL string `json:"url,omitempty"`
	// Env is given to processes.
	Env map[string]string `json:"env,omitempty"`
}

// EndpointCounters count since the daemon began to serve the endpoint.
type EndpointCounters struct {
	// Connections and Active are how many there are now.
	Connections int64 `json:"connections"`
	Active      int64 `json:"active"`
	// Requests is how many there were, and for tcp how many connections.
	Requests int64 `json:"requests"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// Upstream is how many connections to the target were opened.
	Upstream int64 `json:"upstream"`
	// Errors count what failed, by code.
	Errors map[string]int64 `json:"errors,omitempty"`
	// Unrecorded is how many exchanges are not in the audit log, which could not keep up.
	Unrecorded int64 `json:"unrecorded,omitempty"`
}

// EndpointList is the endpoints of a sandbox, by name.
type EndpointList struct {
	Endpoints []EndpointStatus `json:"endpoints"`
}

// EndpointRemoval says what became of what was under way.
type EndpointRemoval struct {
	// Drained ended by themselves, Cancelled were cut off.
	Drained   int64 `json:"drained"`
	Cancelled int64 `json:"cancelled"`
}

// Exchange is one request that went through an endpoint, or one connection of raw
// TCP. It holds no query, no body and no value of a header.
type Exchange struct {
	ID       string    `json:"id"`
	Tenant   string    `json:"tenant"`
	Sandbox  string    `json:"sandbox"`
	Endpoint string    `json:"endpoint"`
	Time     time.Time `json:"time"`
	Method   string    `json:"method,omitempty"`
	// Path has no query, and is cut.
	Path string `json:"path,omitempty"`
	// Status is what the sandbox got, Upstream what the target said; 0 is nothing.
	Status   int   `json:"status,omitempty"`
	Upstream int   `json:"upstream_status,omitempty"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// FirstByteMS and DurationMS count from Time.
	FirstByteMS int64 `json:"first_byte_ms,omitempty"`
	DurationMS  int64 `json:"duration_ms"`
	// Outcome is "ok", "client_cancel", "upstream_error", "bridge_error" or "denied".
	Outcome string `json:"outcome"`
	// Code is the bridge's own error.
	Code string `json:"code,omitempty"`
	// Injected are the names of headers that the host set.
	Injected []string `json:"injected,omitempty"`
	// Filtered are the JSON paths of what was taken out of the request.
	Filtered []string `json:"filtered,omitempty"`
	// Peer is who connected to a socket, as the sandbox tells it.
	Peer *ExchangePeer `json:"peer,omitempty"`
	// Repeated: the answer was that to a request before it, which was the same.
	Repeated bool `json:"repeated,omitempty"`
	// Capture is more of it, where the endpoint's Audit says so.
	Capture *ExchangeCapture `json:"capture,omitempty"`
}

// ExchangeCapture is what was noted of a request and its answer.
type ExchangeCapture struct {
	// Headers are one to a line, sorted: those that the target got, and its own.
	RequestHeader  string `json:"request_header,omitempty"`
	ResponseHeader string `json:"response_header,omitempty"`
	RequestBody    string `json:"request_body,omitempty"`
	ResponseBody   string `json:"response_body,omitempty"`
	// Cut: something is longer than what is here.
	Cut bool `json:"cut,omitempty"`
	// Omitted says what is missing, and why.
	Omitted []string `json:"omitted,omitempty"`
}

// Size is how many bytes it holds; nil holds none.
func (c *ExchangeCapture) Size() int64 {
	if c == nil {
		return 0
	}
	return int64(len(c.RequestHeader) + len(c.ResponseHeader) + len(c.RequestBody) + len(c.ResponseBody))
}

// ExchangePeer is a process inside.
type ExchangePeer struct {
	UID uint32 `json:"uid"`
	PID int    `json:"pid"`
}

// The filters of requests to a model's API.
const (
	BodyFilterOff    = "off"
	BodyFilterStrip  = "strip"
	BodyFilterRefuse = "refuse"
)

// ValidEndpointName reports whether s can name an endpoint.
func ValidEndpointName(s string) bool {
	if s == "" || len(s) > 63 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Port is the port inside, 0 where Listen names none.
func (e Endpoint) Port() int {
	listen := e.Listen
	if listen == "" {
		listen = DefaultEndpointListen
	}
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// Socket is the path of the socket inside, empty where it is a port.
func (e Endpoint) Socket() string {
	path, ok := strings.CutPrefix(e.Listen, EndpointListenSocket)
	if !ok {
		return ""
	}
	return path
}

// Raw reports whether bytes go through as they are, and not as HTTP.
func (e Endpoint) Raw() bool {
	return e.Target == TargetClientTCP || strings.HasPrefix(e.Target, "tcp://") || strings.HasPrefix(e.Target, "unix+tcp://")
}

// Exports is what a process of a phase finds in its environment, beside what it is
// given otherwise.
func (e Endpoint) Exports(phase string) map[string]string {
	if !e.inPhase(phase) {
		return nil
	}
	port := strconv.Itoa(e.Port())
	parts := strings.NewReplacer("{base}", "http://127.0.0.1:"+port, "{host}", "127.0.0.1", "{port}", port)
	if socket := e.Socket(); socket != "" {
		parts = strings.NewReplacer("{path}", socket)
	}
	out := map[string]string{}
	for _, p := range e.Presets {
		for k, v := range EndpointPresets()[p] {
			out[k] = parts.Replace(v)
		}
	}
	for k, v := range e.Env {
		out[k] = parts.Replace(v)
	}
	return out
}

// inPhase: what channels and the score do is done for the run, and the caller's own
// handlers have the host's view of an endpoint.
func (e Endpoint) inPhase(phase string) bool {
	if phase == PhaseChannels || phase == PhaseScore {
		phase = PhaseRun
	}
	if len(e.Phases) == 0 {
		return phase == PhasePostSetup || phase == PhaseRun
	}
	return slices.Contains(e.Phases, phase)
}

// EndpointPresets are the variables of each preset. An SDK wants a key to begin
// with; the one here opens nothing, and is taken out on the way.
func EndpointPresets() map[string]map[string]string {
	return map[string]map[string]string{
		"openai":    {"OPENAI_BASE_URL": "{base}/v1", "OPENAI_API_KEY": "cloche"},
		"anthropic": {"ANTHROPIC_BASE_URL": "{base}", "ANTHROPIC_API_KEY": "cloche"},
	}
}
