package api

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// EndpointListenAuto lets the daemon choose the port and report it.
	EndpointListenAuto = "loopback:auto"
	// EndpointListenSocket is the prefix of the address of a socket. The path follows.
	EndpointListenSocket = "unix://"
	// DefaultEndpointListen is the address of an endpoint inside the sandbox when the request
	// does not set one.
	DefaultEndpointListen = "127.0.0.1:13131"
	// MaxEndpoints is the maximum number of endpoints of a sandbox.
	MaxEndpoints = 16
)

// Targets that are not addresses. A client that can use the sandbox attaches to the endpoint and
// serves its connections. See Endpoint.Target.
const (
	TargetClient    = "client"
	TargetClientTCP = "client+tcp"
)

// Endpoint makes a service of the host available to a sandbox at an address of the sandbox's
// loopback, whatever its network is.
type Endpoint struct {
	// Name is unique in the sandbox: a lower-case letter, then lower-case letters, digits and
	// "-".
	Name string `json:"name"`
	// Listen is the address inside the sandbox, "127.0.0.1:PORT". Empty means
	// DefaultEndpointListen. "localhost" reaches it too, and it accepts connections before any
	// process runs. EndpointListenAuto is replaced by the chosen address. Listen can also be
	// "unix:///SOCKET", a path inside the sandbox outside of workspaces and mounts.
	Listen string `json:"listen,omitempty"`
	// ListenUser is the only user inside the sandbox that can connect to the socket, and its
	// owner. Empty allows every user.
	ListenUser string `json:"listen_user,omitempty"`
	// Target is where the endpoint leads:
	//
	//   - "http://HOST[:PORT][/BASE]", or https: requests reach only what is below BASE.
	//   - "tcp://HOST:PORT": raw bytes.
	//   - "unix:///SOCKET" and "unix+tcp:///SOCKET": the same two at a socket on the host.
	//   - "client" and "client+tcp": a client attaches to the endpoint and serves it.
	//   - "replay:NAME": a recording answers.
	Target string `json:"target"`
	// Phases are the job phases in which processes get the endpoint's environment: "setup",
	// "post_setup" and "run". Empty means the last two. A process that belongs to no job is
	// in "run".
	Phases []string `json:"phases,omitempty"`
	// Presets add the variables that an SDK reads: "openai", "anthropic".
	Presets []string `json:"presets,omitempty"`
	// Env is also set for processes when they start. In a value, "{base}" is the address as a
	// URL, and "{host}" and "{port}" are its parts. For a socket, "{path}" is its path.
	Env  map[string]string `json:"env,omitempty"`
	HTTP *EndpointHTTP     `json:"http,omitempty"`
	// Audit says what to record of each request in addition to its outline. Nil adds nothing.
	Audit *EndpointAudit `json:"audit,omitempty"`
	// Probe makes the endpoint ready only after one connection to the target succeeded.
	Probe bool `json:"probe,omitempty"`
	// Limits are the endpoint's limits.
	Limits EndpointLimits `json:"limits,omitzero"`
	// Record names the recording that keeps all exchanges. Empty records nothing. A recording of
	// that name must not exist yet.
	Record string `json:"record,omitempty"`
	// Replay configures a recording that is the target. Nil means the zero value.
	Replay *EndpointReplay `json:"replay,omitempty"`
}

// EndpointHTTP says how requests are forwarded to an HTTP target.
type EndpointHTTP struct {
	// Methods are the allowed methods. Empty allows all except CONNECT and TRACE, which are never
	// allowed.
	Methods []string `json:"methods,omitempty"`
	// Paths begin with "/". A path that ends in "/*" covers everything below it. Any other path
	// covers only itself. Empty allows all.
	Paths []string `json:"paths,omitempty"`
	// SetHeaders are set on every request and replace the ones it has.
	SetHeaders map[string]string `json:"set_headers,omitempty"`
	// SecretHeaders are headers that are set to the value of a secret. The map is from header
	// name to secret name.
	SecretHeaders map[string]string `json:"secret_headers,omitempty"`
	// PassHeaders are headers that are forwarded although they are otherwise removed from a
	// sandbox's requests, such as "Authorization", "Cookie" and "X-Api-Key".
	PassHeaders []string `json:"pass_headers,omitempty"`
	// BodyFilter handles requests to a model's API that make the provider do something itself,
	// such as a web search. "strip" removes that part, "refuse" refuses the request, and "off"
	// forwards it. Empty is "strip" with a preset and "off" without.
	BodyFilter string `json:"body_filter,omitempty"`
	// Once answers a repeated request with the answer to the first one, while the first is in
	// progress or after its answer did not arrive. Requests are repeated if they have the same
	// Idempotency-Key and body, or if an SDK counts them in X-Stainless-Retry-Count. With Once, a
	// request continues for a while after its client disconnects.
	Once bool `json:"once,omitempty"`
	// EventKeepAliveMS sends a comment between two events of an event stream when the target has
	// been silent for this long; 0 means never.
	EventKeepAliveMS int64 `json:"event_keepalive_ms,omitempty"`
	// AllowOrigin allows pages of other origins, in a browser inside the sandbox, to use the
	// endpoint.
	AllowOrigin bool `json:"allow_origin,omitempty"`
}

// EndpointAudit says what to record of requests and answers in addition to their outline. Values of
// secrets and of headers that hold credentials are never recorded.
type EndpointAudit struct {
	// Capture is CaptureHeaders, or CaptureBody for headers and bodies.
	Capture string `json:"capture"`
	// MaxBytes is the number of bytes to record of each body; 0 is 2 KiB, and the maximum is 8
	// KiB.
	MaxBytes int `json:"max_bytes,omitempty"`
	// RedactHeaders are further headers whose values are not recorded.
	RedactHeaders []string `json:"redact_headers,omitempty"`
}

// Values of EndpointAudit.Capture.
const (
	CaptureHeaders = "headers"
	CaptureBody    = "body"
)

// EndpointLimits limits an endpoint. Zero is the default that each field names.
type EndpointLimits struct {
	// Connections is the maximum number of open connections; 0 is 256.
	Connections int `json:"connections,omitempty"`
	// Active is the maximum number of active requests, and of connections to the target; 0 is 64.
	// The same number of requests can wait, and further ones are refused.
	Active int `json:"active,omitempty"`
	// RequestBytes limits the body of a request; 0 is 64 MiB.
	RequestBytes int64 `json:"request_bytes,omitempty"`
	// ResponseBytes limits the body of a response; 0 is no limit.
	ResponseBytes int64 `json:"response_bytes,omitempty"`
	// RequestsPerSecond limits the request rate. The burst is one second's worth, and requests
	// above the rate are refused. A raw connection counts as one request. 0 is no limit.
	RequestsPerSecond float64 `json:"requests_per_second,omitempty"`
	// BytesPerSecond limits the throughput of both directions together. Traffic above it is
	// delayed. 0 is no limit.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
	// ConnectMS limits the time to connect to the target; 0 is 5 s.
	ConnectMS int64 `json:"connect_ms,omitempty"`
	// HeaderMS limits the time until the target begins its response; 0 is 5 min.
	HeaderMS int64 `json:"header_ms,omitempty"`
	// IdleMS ends an exchange without traffic after this time; 0 is 5 min.
	IdleMS int64 `json:"idle_ms,omitempty"`
}

// EndpointState is the state of an endpoint.
type EndpointState string

// States of an endpoint.
const (
	// EndpointBinding means that the daemon is connecting to the sandbox.
	EndpointBinding EndpointState = "binding"
	// EndpointReady means that the endpoint accepts connections inside the sandbox.
	EndpointReady EndpointState = "ready"
	// EndpointDegraded means that the endpoint accepts connections but its last exchange failed.
	// Reason says why.
	EndpointDegraded EndpointState = "degraded"
	// EndpointDraining means that no new connections are accepted and exchanges in progress can
	// finish.
	EndpointDraining EndpointState = "draining"
	EndpointClosed   EndpointState = "closed"
	// EndpointFailed means that the listener could not be created. Reason says why.
	EndpointFailed EndpointState = "failed"
)

// EndpointStatus is the status of an endpoint of a sandbox.
type EndpointStatus struct {
	// Endpoint is what was granted, with defaults filled in.
	Endpoint Endpoint      `json:"endpoint"`
	State    EndpointState `json:"state"`
	// Reason says why it is degraded or failed. Since is when it entered its state.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// HostView is the service as seen from the daemon's machine.
	HostView EndpointView `json:"host_view"`
	// SandboxView is the service as seen from processes inside the sandbox, with the environment
	// that they get.
	SandboxView EndpointView `json:"sandbox_view"`
	// Attached is the number of clients that serve the endpoint. It is only set when the target
	// is a client.
	Attached int              `json:"attached,omitempty"`
	Counters EndpointCounters `json:"counters"`
}

// EndpointView is an endpoint as it is seen from one side.
type EndpointView struct {
	URL string `json:"url,omitempty"`
	// Env is set in the environment of processes.
	Env map[string]string `json:"env,omitempty"`
}

// EndpointCounters count since the daemon began to serve the endpoint.
type EndpointCounters struct {
	// Connections and Active are the present numbers.
	Connections int64 `json:"connections"`
	Active      int64 `json:"active"`
	// Requests counts requests, or connections for tcp.
	Requests int64 `json:"requests"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// Upstream counts the connections that were opened to the target.
	Upstream int64 `json:"upstream"`
	// Errors counts errors by code.
	Errors map[string]int64 `json:"errors,omitempty"`
	// Unrecorded counts exchanges that are missing from the audit log because it could not keep
	// up.
	Unrecorded int64 `json:"unrecorded,omitempty"`
}

// EndpointList lists the endpoints of a sandbox, sorted by name.
type EndpointList struct {
	Endpoints []EndpointStatus `json:"endpoints"`
}

// EndpointRemoval says what happened to the exchanges in progress.
type EndpointRemoval struct {
	// Drained counts exchanges that finished. Cancelled counts those that were cut off.
	Drained   int64 `json:"drained"`
	Cancelled int64 `json:"cancelled"`
}

// Exchange is one request that went through an endpoint, or one raw TCP connection. It holds no
// query, no body and no header value.
type Exchange struct {
	ID       string    `json:"id"`
	Tenant   string    `json:"tenant"`
	Sandbox  string    `json:"sandbox"`
	Endpoint string    `json:"endpoint"`
	Time     time.Time `json:"time"`
	Method   string    `json:"method,omitempty"`
	// Path has no query and may be truncated.
	Path string `json:"path,omitempty"`
	// Status is what the sandbox received, and Upstream is what the target answered; 0 is no
	// answer.
	Status   int   `json:"status,omitempty"`
	Upstream int   `json:"upstream_status,omitempty"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// FirstByteMS and DurationMS count from Time.
	FirstByteMS int64 `json:"first_byte_ms,omitempty"`
	DurationMS  int64 `json:"duration_ms"`
	// Outcome is "ok", "client_cancel", "upstream_error", "bridge_error" or "denied".
	Outcome string `json:"outcome"`
	// Code is the error of the endpoint itself.
	Code string `json:"code,omitempty"`
	// Injected are the names of the headers that the daemon set.
	Injected []string `json:"injected,omitempty"`
	// Filtered are the JSON paths of what was removed from the request.
	Filtered []string `json:"filtered,omitempty"`
	// Peer is the process that connected to a socket, as the sandbox reports it.
	Peer *ExchangePeer `json:"peer,omitempty"`
	// Repeated is set when the request got the answer of an earlier, equal request.
	Repeated bool `json:"repeated,omitempty"`
	// Capture holds more of the exchange, if the endpoint's Audit asks for it.
	Capture *ExchangeCapture `json:"capture,omitempty"`
}

// ExchangeCapture is what was recorded of a request and its answer.
type ExchangeCapture struct {
	// The headers are one per line, sorted: those that the target received, and those that it
	// sent.
	RequestHeader  string `json:"request_header,omitempty"`
	ResponseHeader string `json:"response_header,omitempty"`
	RequestBody    string `json:"request_body,omitempty"`
	ResponseBody   string `json:"response_body,omitempty"`
	// Cut is set when something was truncated.
	Cut bool `json:"cut,omitempty"`
	// Omitted says what was left out, and why.
	Omitted []string `json:"omitted,omitempty"`
}

// Size returns the number of bytes that c holds. It is 0 for nil.
func (c *ExchangeCapture) Size() int64 {
	if c == nil {
		return 0
	}
	return int64(len(c.RequestHeader) + len(c.ResponseHeader) + len(c.RequestBody) + len(c.ResponseBody))
}

// ExchangePeer is a process inside the sandbox.
type ExchangePeer struct {
	UID uint32 `json:"uid"`
	PID int    `json:"pid"`
}

// Values of EndpointHTTP.BodyFilter.
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

// Port returns the port inside the sandbox, or 0 if Listen has none.
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

// Socket returns the path of the socket inside the sandbox, or "" if Listen is a port.
func (e Endpoint) Socket() string {
	path, ok := strings.CutPrefix(e.Listen, EndpointListenSocket)
	if !ok {
		return ""
	}
	return path
}

// Raw reports whether bytes are forwarded unchanged, and not as HTTP.
func (e Endpoint) Raw() bool {
	return e.Target == TargetClientTCP || strings.HasPrefix(e.Target, "tcp://") || strings.HasPrefix(e.Target, "unix+tcp://")
}

// Exports returns the variables that the endpoint adds to the environment of a process in a phase.
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

// inPhase reports whether processes of a phase get the environment. Channels and score count as the
// run. The caller's own handlers have the host's view of an endpoint.
func (e Endpoint) inPhase(phase string) bool {
	if phase == PhaseChannels || phase == PhaseScore {
		phase = PhaseRun
	}
	if len(e.Phases) == 0 {
		return phase == PhasePostSetup || phase == PhaseRun
	}
	return slices.Contains(e.Phases, phase)
}

// EndpointPresets returns the variables of each preset. An SDK does not start without a key, so a
// preset sets one. This key is not valid anywhere, and the endpoint removes it from requests.
func EndpointPresets() map[string]map[string]string {
	return map[string]map[string]string{
		"openai":    {"OPENAI_BASE_URL": "{base}/v1", "OPENAI_API_KEY": "cloche"},
		"anthropic": {"ANTHROPIC_BASE_URL": "{base}", "ANTHROPIC_API_KEY": "cloche"},
	}
}
