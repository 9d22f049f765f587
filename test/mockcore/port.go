package mockcore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Ports are the open ports of all sandboxes, by the name that callers gave.
type Ports struct {
	mu   sync.Mutex
	open map[string][]api.OpenPort
}

// OpenPort opens a port with the token "token".
func (p *Ports) OpenPort(_ context.Context, _ core.Caller, ref string, spec api.PortSpec) (api.OpenedPort, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if spec.Port < 1 || spec.Port > 65535 {
		return api.OpenedPort{}, api.Invalid("port", "port %d does not exist", spec.Port)
	}
	o := api.OpenedPort{OpenPort: api.OpenPort{
		Port: spec.Port, Public: spec.Public, KeepHost: spec.KeepHost, URL: fmt.Sprintf("http://%d-%s.localhost:1/", spec.Port, ref), CreatedAt: Epoch(),
	}}
	o.AccessURL = o.URL
	if !o.Public {
		o.Token = "token"
		o.AccessURL += "?" + api.PortTokenParameter + "=token"
	}
	if p.open == nil {
		p.open = map[string][]api.OpenPort{}
	}
	p.open[ref] = append(p.open[ref], o.OpenPort)
	return o, nil
}

// OpenPorts lists them.
func (p *Ports) OpenPorts(_ context.Context, _ core.Caller, ref string) (api.PortList, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return api.PortList{Ports: slices.Clone(p.open[ref])}, nil
}

// ClosePort closes one.
func (p *Ports) ClosePort(_ context.Context, _ core.Caller, ref string, port int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.open[ref])
	p.open[ref] = slices.DeleteFunc(p.open[ref], func(o api.OpenPort) bool { return o.Port == port })
	if len(p.open[ref]) == before {
		return api.Errorf(api.CodeNotFound, "port %d is not open", port)
	}
	return nil
}
