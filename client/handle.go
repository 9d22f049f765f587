package client

import (
	"context"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Exec runs argv without a shell and waits for its end. A command that fails has a result; it is
// not an error.
func (s *Sandbox) Exec(ctx context.Context, argv ...string) (*api.Result, error) {
	return s.client.Exec(ctx, s.ID, api.ExecRequest{Argv: argv})
}

// ExecWith is Exec with every field of the request.
func (s *Sandbox) ExecWith(ctx context.Context, req api.ExecRequest) (*api.Result, error) {
	return s.client.Exec(ctx, s.ID, req)
}

// Shell runs a script with /bin/sh and waits for its end.
func (s *Sandbox) Shell(ctx context.Context, script string) (*api.Result, error) {
	return s.client.Shell(ctx, s.ID, script)
}

// ExecStream starts a program whose input and output are streamed.
func (s *Sandbox) ExecStream(ctx context.Context, req api.ExecRequest) (*Stream, error) {
	return s.client.ExecStream(ctx, s.ID, req)
}

// Stop is Client.Stop with the default grace period. It updates the handle's record.
func (s *Sandbox) Stop(ctx context.Context) error {
	return s.update(s.client.Stop(ctx, s.ID, api.StopOptions{}))
}

// Kill is Client.Kill. It updates the handle's record.
func (s *Sandbox) Kill(ctx context.Context) error { return s.update(s.client.Kill(ctx, s.ID)) }

// Remove is Client.Remove.
func (s *Sandbox) Remove(ctx context.Context) error { return s.client.Remove(ctx, s.ID) }

// Refresh updates the handle's record.
func (s *Sandbox) Refresh(ctx context.Context) error {
	n, err := s.client.Get(ctx, s.ID)
	if err != nil {
		return err
	}
	s.Sandbox = n.Sandbox
	return nil
}

// Stats is Client.Stats.
func (s *Sandbox) Stats(ctx context.Context) (api.SandboxStats, error) {
	return s.client.Stats(ctx, s.ID)
}

// Logs returns the last tail lines of the output of all processes as text; 0 is all that is kept.
func (s *Sandbox) Logs(ctx context.Context, tail int) (string, error) {
	var b strings.Builder
	err := s.client.Logs(ctx, s.ID, api.LogOptions{Tail: tail}, func(e api.LogEntry) error {
		b.Write(e.Data)
		return nil
	})
	return b.String(), err
}

// Processes is Client.Processes.
func (s *Sandbox) Processes(ctx context.Context) ([]api.Process, error) {
	return s.client.Processes(ctx, s.ID)
}

// ReadFile is Client.ReadFile.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return s.client.ReadFile(ctx, s.ID, path)
}

// WriteFile is Client.WriteFile.
func (s *Sandbox) WriteFile(ctx context.Context, path string, data []byte, mode uint32) error {
	_, err := s.client.WriteFile(ctx, s.ID, path, data, mode)
	return err
}

func (s *Sandbox) update(sb api.Sandbox, err error) error {
	if err == nil {
		s.Sandbox = sb
	}
	return err
}
