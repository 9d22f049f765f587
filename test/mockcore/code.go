package mockcore

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Code has the code contexts of all sandboxes, by ID. Their language is Python.
type Code struct {
	mu   sync.Mutex
	made []api.CodeContext
}

// CreateContext creates a context. No image has a kernel for another language.
func (c *Code) CreateContext(_ context.Context, _ core.Caller, _ string, spec api.CodeContextSpec) (api.CodeContext, error) {
	if spec.Language != "" && spec.Language != "python" {
		return api.CodeContext{}, api.Errorf(api.CodeUnsupported, "the image has no Jupyter kernel for %s", spec.Language)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := api.CodeContext{ID: spec.ID, Language: "python", Cwd: spec.Cwd, ExecID: "code-" + spec.ID, State: api.ProcessRunning, StartedAt: Epoch()}
	c.made = append(c.made, out)
	return out, nil
}

// Contexts lists them.
func (c *Code) Contexts(context.Context, core.Caller, string) (api.CodeContextList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return api.CodeContextList{Contexts: c.made}, nil
}

func (c *Code) find(id string) (int, error) {
	for i, x := range c.made {
		if x.ID == id {
			return i, nil
		}
	}
	return 0, api.Errorf(api.CodeNotFound, "there is no code context %q", id)
}

// RestartContext does nothing to a context that exists.
func (c *Code) RestartContext(_ context.Context, _ core.Caller, _, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.find(id)
	return err
}

// RemoveContext removes a context.
func (c *Code) RemoveContext(_ context.Context, _ core.Caller, _, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, err := c.find(id)
	if err == nil {
		c.made = append(c.made[:i:i], c.made[i+1:]...)
	}
	return err
}

// RunCode prints the code, and its value is the code. The code "1/0" fails.
func (c *Code) RunCode(_ context.Context, _ core.Caller, _ string, r api.CodeRequest, fn func(api.CodeEvent) error) error {
	c.mu.Lock()
	_, err := c.find(r.Context)
	c.mu.Unlock()
	if err != nil && r.Context != "" {
		return err
	}
	value, err := json.Marshal(r.Code)
	if err != nil {
		return err
	}
	events := []api.CodeEvent{
		{Type: api.CodeStdout, Text: r.Code + "\n"}, {Type: api.CodeResult, Main: true, Data: map[string]json.RawMessage{"text/plain": value}},
		{Type: api.CodeEnd, Status: "ok", ExecutionCount: 1},
	}
	if r.Code == "1/0" {
		events = []api.CodeEvent{{Type: api.CodeError, Name: "ZeroDivisionError", Value: "division by zero"}, {Type: api.CodeEnd, Status: "error", ExecutionCount: 1}}
	}
	for _, e := range events {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}
