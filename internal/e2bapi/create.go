package e2bapi

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// The lifetimes of requests that name none, in seconds: of the two versions of the route.
const (
	timeoutV1 = 15
	timeoutV2 = 300
)

// home is the working directory of E2B's sandboxes: their workspace is there.
const home = "/home/user"

// createRequest is the body of a create.
type createRequest struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"` // seconds
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Internet     *bool      `json:"allow_internet_access"`
	Network      *network   `json:"network"`
	VolumeMounts []struct{} `json:"volumeMounts"`
	IAM          *struct {
		Tokens map[string]any `json:"tokens"`
	} `json:"iam"`
}

// network is the network of a request.
type network struct {
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	EgressProxy        any      `json:"egressProxy,omitempty"`
	MaskRequestHost    string   `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int    `json:"httpsPorts,omitempty"`
	Rules              any      `json:"rules,omitempty"`
}

// sandboxAnswer is the answer to a create and a connect.
type sandboxAnswer struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken string  `json:"trafficAccessToken,omitempty"`
	Domain             *string `json:"domain"`
}

func (s *Server) answerOf(r *record) sandboxAnswer {
	return sandboxAnswer{
		TemplateID: r.Template, SandboxID: idOf(r.Sandbox), ClientID: clientID, EnvdVersion: envdVersion,
		EnvdAccessToken: r.Token, TrafficAccessToken: r.TrafficToken, Domain: s.domainOf(),
	}
}

func (s *Server) domainOf() *string {
	if s.domain == "" {
		return nil
	}
	return &s.domain
}

// create returns the handler of one version of the route.
func (s *Server) create(timeout int64) handler {
	return func(w http.ResponseWriter, r request) error {
		var req createRequest
		if err := decode(r.Request, &req); err != nil {
			return err
		}
		if req.Timeout == nil {
			req.Timeout = &timeout
		}
		if err := req.check(); err != nil {
			return err
		}
		from, err := s.sourceOf(r, req.TemplateID)
		if err != nil {
			return err
		}
		spec := api.SandboxSpec{
			Profile: s.profile, Image: from.image, Snapshot: from.snapshot, User: from.user, Sudo: true, Env: map[string]string{"E2B_SANDBOX": "true"},
			Limits: api.Limits{LifetimeMS: *req.Timeout * 1000}, OnExpiry: api.ExpiryStop, Labels: map[string]string{"e2b.template": req.TemplateID},
		}
		template, err := s.builtTemplate(r, from.image)
		if err != nil {
			return err
		}
		switch {
		case from.memory: // its user, workspace and home are those of the sandbox that the snapshot was made of
			spec.User, spec.Sudo = "", false
		case template == nil: // whose files may be in the home, which a workspace would hide
			spec.Workspace = &api.Workspace{Path: home}
			if from.user == "" {
				spec.Env["HOME"] = home
			}
		}
		maps.Copy(spec.Env, req.EnvVars)
		if spec.Network, spec.Egress, err = s.egressOf(req.Network, req.Internet); err != nil {
			return err
		}
		sb, err := s.core.Create(r.Context(), r.caller, spec, nil)
		if err != nil {
			return err
		}
		if template != nil {
			if err := s.startTemplate(r.Context(), r.caller, sb.ID, *template); err != nil {
				s.discard(r.Context(), r.caller, sb.ID)
				return err
			}
		}
		kept := record{
			Sandbox: sb.ID, Caller: r.callerID, Token: newToken(), Template: req.TemplateID, Metadata: req.Metadata,
			Network: req.Network, Internet: req.Internet, Started: time.Now().UTC(),
			AutoPause: req.AutoPause, AutoResume: req.AutoResume != nil && req.AutoResume.Enabled, Timeout: *req.Timeout,
			ColdPause: req.AutoPauseMemory != nil && !*req.AutoPauseMemory,
		}
		kept.setEnd(*req.Timeout)
		if kept.AutoPause {
			err = s.keep(r.Context(), r.caller, sb.ID, *req.Timeout)
		}
		if n := req.Network; n != nil && n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic {
			kept.TrafficToken = newToken()
		}
		if err == nil {
			err = s.records.put(kept)
		}
		if err != nil {
			s.discard(r.Context(), r.caller, sb.ID)
			return err
		}
		writeJSON(w, http.StatusCreated, s.answerOf(&kept))
		return nil
	}
}

// builtTemplate returns the image if it was built as a template; nil is any other.
func (s *Server) builtTemplate(r request, image string) (*api.Image, error) {
	if image == "" || image == api.DefaultImage {
		return nil, nil
	}
	im, err := s.core.InspectImage(r.Context(), r.caller, image)
	if err != nil || !isTemplate(im) {
		return nil, err
	}
	return &im, nil
}

// discard removes a sandbox that has no record.
func (s *Server) discard(ctx context.Context, caller core.Caller, id string) {
	if _, err := s.core.Delete(context.WithoutCancel(ctx), caller, id); err != nil {
		s.log.Error("remove a sandbox without a record", "sandbox", id, "error", err)
	}
}

// maxMetadata limits the metadata of a sandbox, in bytes of keys and values.
const maxMetadata = 64 << 10

// check refuses what this server cannot do. Nothing is ignored silently.
func (req *createRequest) check() error {
	size := 0
	for k, v := range req.Metadata {
		size += len(k) + len(v)
	}
	switch {
	case req.TemplateID == "":
		return fail(http.StatusBadRequest, "templateID is missing")
	case *req.Timeout <= 0:
		return fail(http.StatusBadRequest, "timeout is %d: it must be at least 1 second", *req.Timeout)
	case *req.Timeout > maxTimeout:
		return fail(http.StatusBadRequest, "timeout is %d: it can be at most %d seconds", *req.Timeout, maxTimeout)
	case size > maxMetadata:
		return fail(http.StatusBadRequest, "the metadata has %d bytes: it can have at most %d", size, maxMetadata)
	case !req.AutoPause && req.AutoPauseMemory != nil && !*req.AutoPauseMemory:
		return fail(http.StatusBadRequest, "autoPauseMemory needs autoPause")
	case len(req.VolumeMounts) > 0:
		return unsupported("this server has no volumes")
	case req.IAM != nil && len(req.IAM.Tokens) > 0:
		return fail(http.StatusBadRequest, "this server issues no IAM tokens")
	}
	return nil
}

// maxTimeout is the longest lifetime that a request can set, in seconds: 30 days. The profile may allow
// less.
const maxTimeout = 30 * 24 * 3600

// allTraffic is every address.
const allTraffic = "0.0.0.0/0"

// egressOf translates the network of a request. An empty network is the profile's.
func (s *Server) egressOf(n *network, internet *bool) (string, *api.Egress, error) {
	if n == nil {
		n = &network{}
	}
	switch {
	case n.EgressProxy != nil:
		return "", nil, fail(http.StatusForbidden, "this server has no egress proxy")
	case n.Rules != nil && !emptyObject(n.Rules):
		return "", nil, unsupported("this server adds no headers to requests: use a secret of the policy, which programs do not see")
	case len(n.HTTPSPorts) > 0:
		return "", nil, unsupported("this server speaks no TLS to ports of a sandbox")
	}
	deny, all, err := destinations(n.DenyOut, false)
	if err != nil {
		return "", nil, err
	}
	allow, every, err := destinations(n.AllowOut, true)
	if err != nil {
		return "", nil, err
	}
	if internet != nil && !*internet {
		all = true
	}
	switch {
	case every:
		allow = []string{"*"}
	case len(allow) > 0 && !all && hasName(allow):
		return "", nil, fail(http.StatusBadRequest, "names in allowOut need %s in denyOut", allTraffic)
	case len(allow) > 0 && all:
	case all:
		return api.NetworkNone, nil, nil
	case len(s.allow) > 0:
		allow = s.allow
	case len(deny) == 0:
		return "", nil, nil
	default:
		allow = nil // the profile's
	}
	return api.NetworkOn, &api.Egress{Allow: allow, Deny: deny}, nil
}

func emptyObject(v any) bool {
	m, ok := v.(map[string]any)
	return ok && len(m) == 0
}

// destinations translates names, addresses and ranges. all reports the range of every address; other
// ranges of more than one address are refused, because egress rules have none.
func destinations(in []string, names bool) (out []string, all bool, err error) {
	for _, d := range in {
		p, perr := netip.ParsePrefix(d)
		_, aerr := netip.ParseAddr(d)
		switch {
		case d == allTraffic || d == "*":
			all = true
		case perr == nil && p.IsSingleIP() && p.Addr().Is4():
			out = append(out, p.Addr().String())
		case perr == nil:
			return nil, false, unsupported("the range %s cannot be a rule here: name hosts or single IPv4 addresses", clip(d))
		case aerr == nil:
			out = append(out, d)
		case !names:
			return nil, false, fail(http.StatusBadRequest, "denyOut takes addresses and ranges, and %q is a name", clip(d))
		default:
			out = append(out, strings.ToLower(d))
		}
	}
	return out, all, nil
}

func hasName(rules []string) bool {
	for _, r := range rules {
		if _, err := netip.ParseAddr(r); err != nil {
			return true
		}
	}
	return false
}
