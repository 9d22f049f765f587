package e2b

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/inner"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

// maxComplaint bounds what is read of an agent that says why it does not listen.
const maxComplaint = 4 << 10

// creation is a Create in progress.
type creation struct {
	e        *Engine
	p        engine.Plan
	lifetime time.Duration
	made     created
	// unknown: the service was asked for the sandbox, and its answer was not read.
	unknown bool
	inst    *instance // nil until the sandbox is made
}

// Create implements engine.Engine. The request that makes the sandbox is not canceled with ctx, because
// its result would not be known then. The caller waits for it, and then the sandbox is removed.
func (e *Engine) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := e.check(p); err != nil {
		return nil, err
	}
	what := "create sandbox " + p.ID
	if e.problem != nil {
		return nil, api.Errorf(api.CodeUnavailable, "%s: %s", what, e.problem.What).WithHint("%s", e.problem.Mend)
	}
	key := p.Owner + "/" + p.ID
	if _, busy := e.making.LoadOrStore(key, struct{}{}); busy {
		return nil, api.Errorf(api.CodeExists, "%s: it is being made", what)
	}
	defer e.making.Delete(key)
	c := &creation{e: e, p: p, lifetime: e.opts.Lifetime}
	if p.DieWithParent {
		c.lifetime = parentLifetime
	}
	bounded, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	err := c.run(bounded)
	if err == nil {
		return c.inst, nil
	}
	c.undo(ctx)
	return nil, c.failure(bounded, what, err)
}

// check refuses a plan that the service could not carry out as it is.
func (e *Engine) check(p engine.Plan) error {
	refused := func(what string) error {
		return api.Errorf(api.CodeUnsupported, "engine e2b cannot give a sandbox %s", what).
			WithHint("leave it out, or use another engine")
	}
	if err := cmp.Or(p.Validate(), p.RefuseSaved(Name)); err != nil {
		return err
	}
	l := p.Limits
	switch {
	case len(p.Agent.Config) > inner.MaxConfig:
		return api.Errorf(api.CodeInternal, "create sandbox: the plan has a configuration of the agent that is too long")
	case p.Link != nil:
		return refused("a network link")
	case p.Root.ReadOnly:
		return refused("a read-only root")
	case l.CPUs > 0 || l.MemoryBytes > 0 || l.DiskBytes > 0 || l.Pids > 0:
		return refused("a limit: its template at the service has them")
	case len(p.Rules) > 0:
		return refused("rules on paths inside a mount, such as the one for " + strconv.Quote(path.Join(p.Rules[0].Target, p.Rules[0].Path)))
	case len(p.Mounts) > 0:
		return refused("a mount at " + p.Mounts[0].Target)
	case slices.ContainsFunc(p.Volumes, func(v engine.Volume) bool { return v.Name != "" || v.Source == "" && v.ReadOnly }):
		return refused("a volume that is read-only or outlives it")
	case !e.opts.HostMounts && slices.ContainsFunc(p.Volumes, func(v engine.Volume) bool { return v.Source != "" }):
		return refused("a directory of this machine")
	}
	return nil
}

// run makes the sandbox and starts the agent in it.
func (c *creation) run(ctx context.Context) error {
	upload, err := c.e.uploadOf(ctx, c.p.Agent)
	if err != nil {
		return err
	}
	meta := map[string]string{metaOwner: c.p.Owner, metaID: c.p.ID}
	there, err := c.e.service.list(ctx, maps.Clone(meta))
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return api.Errorf(api.CodeExists, "create sandbox %s: it exists already", c.p.ID)
	}
	if mounts := hostMounts(c.p.Volumes); mounts != "" {
		meta[metaMounts] = mounts
	}
	template := cmp.Or(c.p.Root.Template, c.e.opts.Template)
	if c.made, err = c.e.service.create(context.WithoutCancel(ctx), template, c.lifetime, meta); err != nil {
		_, refused := errors.AsType[*refusal](err)
		c.unknown = !refused
		return err
	}
	v, err := c.e.service.envdOf(c.made)
	if err != nil {
		return err
	}
	c.inst = c.e.newInstance(record{
		Version: recordVersion, ID: c.p.ID, Owner: c.p.Owner, API: c.e.service.api.String(), Sandbox: c.made.SandboxID,
		Program: upload.program, Socket: path.Join(c.p.Agent.Target, "run", "agent.sock"), LifetimeS: seconds(c.lifetime),
	}, v)
	if err := c.checkNetwork(ctx); err != nil {
		return err
	}
	if err := v.upload(ctx, upload); err != nil {
		return fmt.Errorf("upload the agent: %w", err)
	}
	if _, err := v.run(ctx, slices.Concat([]string{"chmod", "0755"}, upload.paths)...); err != nil {
		return fmt.Errorf("make the agent executable: %w", err)
	}
	return c.start(ctx, v)
}

// hostMounts is the value of metaMounts, or empty.
func hostMounts(volumes []engine.Volume) string {
	type mount struct {
		HostPath  string `json:"hostPath"`
		MountPath string `json:"mountPath"`
		ReadOnly  bool   `json:"readOnly"`
	}
	var all []mount
	for _, v := range volumes {
		if v.Source != "" {
			all = append(all, mount{v.Source, v.Target, v.ReadOnly})
		}
	}
	if len(all) == 0 {
		return ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "" // strings can always be encoded
	}
	return string(text)
}

// checkNetwork refuses a sandbox that has access to the internet, as far as the service says.
func (c *creation) checkNetwork(ctx context.Context) error {
	if c.e.opts.AssumeNoNetwork {
		return nil
	}
	d, err := c.e.service.get(ctx, c.made.SandboxID)
	if err != nil {
		return err
	}
	if d.Internet == nil || *d.Internet {
		return api.Errorf(api.CodeUnsupported, "create sandbox %s: the service does not confirm that the sandbox has no network", c.p.ID).
			WithHint("use a service that has allow_internet_access; the setting e2b.network_off: assumed runs sandboxes on this one")
	}
	return nil
}

// start starts the agent, hands it its configuration and waits until it listens.
func (c *creation) start(ctx context.Context, v *envd) error {
	i, a := c.inst, c.p.Agent
	args := []string{inner.Argv0, inner.Serve, strconv.FormatUint(uint64(a.UID), 10), i.rec.Socket, strconv.Itoa(len(c.p.Volumes))}
	for _, vol := range c.p.Volumes {
		args = append(args, vol.Target)
	}
	yes, tag := true, agentTag
	life, cancel := context.WithCancel(i.life)
	stop := context.AfterFunc(ctx, cancel)
	p, err := v.start(life, &envdpb.StartRequest{
		Process: &envdpb.ProcessConfig{Cmd: i.rec.Program, Args: append(args, a.Argv...), Cwd: root()}, Tag: &tag, Stdin: &yes,
	})
	if err == nil {
		msg := binary.BigEndian.AppendUint32(nil, uint32(len(a.Config)))
		if err = give(ctx, v, p.pid, append(msg, a.Config...)); err == nil {
			err = waitReady(p)
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		if p != nil {
			p.close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("start the agent: %w", err)
	}
	context.AfterFunc(i.life, cancel)
	i.begin(p)
	return nil
}

// give writes to the input of a process.
func give(ctx context.Context, v *envd, pid uint32, data []byte) error {
	sel := &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: pid}}
	_, err := v.process.SendInput(ctx, connect.NewRequest(&envdpb.SendInputRequest{Process: sel, Input: input(data)}))
	return err
}

// waitReady reads what the agent says when it listens, or why it does not.
func waitReady(p *proc) error {
	var said strings.Builder
	for {
		data, err := p.next()
		if len(data) > 0 && said.Len() == 0 && data[0] < ' ' {
			return nil
		}
		if said.Len() < maxComplaint {
			said.Write(data)
		}
		ended, over := errors.AsType[*endedError](err)
		if line, _, whole := strings.Cut(said.String(), "\n"); whole || over && line != "" {
			return api.Errorf(api.CodeInternal, "create sandbox: the agent said: %q", clip(line))
		}
		if over {
			return api.Errorf(api.CodeInternal, "create sandbox: the agent ended before it was ready").WithCause(ended)
		}
		if err != nil {
			return err
		}
	}
}

// undo removes the sandbox, if there is or may be one.
func (c *creation) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	var err error
	switch {
	case c.inst != nil:
		err = c.inst.Close(ctx)
	case c.unknown:
		err = c.e.sweep(ctx, map[string]string{metaOwner: c.p.Owner, metaID: c.p.ID}, nil)
	case c.made.SandboxID != "":
		err = c.e.service.remove(ctx, c.made.SandboxID)
	}
	if err != nil {
		c.e.log.Warn("a sandbox whose creation failed is left at the service", "sandbox", c.p.ID, "at", c.made.SandboxID, "error", err)
	}
}

// failure classifies the error of a create.
func (c *creation) failure(ctx context.Context, what string, err error) error {
	r, refused := errors.AsType[*refusal](err)
	if refused && c.inst == nil {
		switch r.status {
		case http.StatusNotFound:
			e := api.Errorf(api.CodeNotFound, "%s: the service has no such template: %s", what, r.message).WithCause(err)
			e.Field = "image"
			return e.WithHint("name a template of the service, or set e2b.template")
		case http.StatusBadRequest:
			return api.Errorf(api.CodeUnsupported, "%s: the service refuses it: %s", what, r.message).
				WithHint("a shorter e2b.lifetime may be allowed").WithCause(err)
		}
	}
	return dataError(ctx, what, err)
}
