package client

import (
	"context"
	"io"
	"net"
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

// StartProcess is Client.StartProcess.
func (s *Sandbox) StartProcess(ctx context.Context, spec api.ProcessSpec) (api.Process, error) {
	return s.client.StartProcess(ctx, s.ID, spec)
}

// Process is Client.Process.
func (s *Sandbox) Process(ctx context.Context, id string) (api.Process, error) {
	return s.client.Process(ctx, s.ID, id)
}

// WaitProcess is Client.WaitProcess.
func (s *Sandbox) WaitProcess(ctx context.Context, id string, w api.WaitRequest) (api.Process, error) {
	return s.client.WaitProcess(ctx, s.ID, id, w)
}

// SignalProcess is Client.SignalProcess.
func (s *Sandbox) SignalProcess(ctx context.Context, id string, r api.SignalRequest) error {
	return s.client.SignalProcess(ctx, s.ID, id, r)
}

// ResizeProcess is Client.ResizeProcess.
func (s *Sandbox) ResizeProcess(ctx context.Context, id string, size api.Size) error {
	return s.client.ResizeProcess(ctx, s.ID, id, size)
}

// WriteStdin is Client.WriteStdin.
func (s *Sandbox) WriteStdin(ctx context.Context, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error) {
	return s.client.WriteStdin(ctx, s.ID, id, offset, r, end)
}

// CloseStdin is Client.CloseStdin.
func (s *Sandbox) CloseStdin(ctx context.Context, id string) (api.StdinAck, error) {
	return s.client.CloseStdin(ctx, s.ID, id)
}

// RemoveProcess is Client.RemoveProcess.
func (s *Sandbox) RemoveProcess(ctx context.Context, id string) error {
	return s.client.RemoveProcess(ctx, s.ID, id)
}

// Attach is Client.Attach.
func (s *Sandbox) Attach(ctx context.Context, id string, r api.AttachRequest) (*Attachment, error) {
	return s.client.Attach(ctx, s.ID, id, r)
}

// LogsWith is Client.Logs.
func (s *Sandbox) LogsWith(ctx context.Context, o api.LogOptions, fn func(api.LogEntry) error) error {
	return s.client.Logs(ctx, s.ID, o, fn)
}

// DialPort is Client.DialPort.
func (s *Sandbox) DialPort(ctx context.Context, port int) (net.Conn, error) {
	return s.client.DialPort(ctx, s.ID, port)
}

// Heartbeat is Client.Heartbeat. It updates the handle's record.
func (s *Sandbox) Heartbeat(ctx context.Context) error {
	return s.update(s.client.Heartbeat(ctx, s.ID))
}

// Start is Client.StartSandbox. It updates the handle's record.
func (s *Sandbox) Start(ctx context.Context) error { return s.update(s.client.StartSandbox(ctx, s.ID)) }

// Pause is Client.Pause. It updates the handle's record.
func (s *Sandbox) Pause(ctx context.Context) error { return s.update(s.client.Pause(ctx, s.ID)) }

// Suspend is Client.Suspend. It updates the handle's record.
func (s *Sandbox) Suspend(ctx context.Context) error { return s.update(s.client.Suspend(ctx, s.ID)) }

// Fork is Client.Fork. The handles are in the order of the request. If a fork failed, there are fewer of them, and the error says
// why the first one failed.
func (s *Sandbox) Fork(ctx context.Context, req api.ForkRequest) ([]*Sandbox, error) {
	res, err := s.client.Fork(ctx, s.ID, req)
	if err == nil && len(res.Failed) > 0 {
		err = res.Failed[0].Error
	}
	var forks []*Sandbox
	for _, sb := range res.Succeeded {
		forks = append(forks, &Sandbox{sb, s.client})
	}
	return forks, err
}

// Resume is Client.Resume. It updates the handle's record.
func (s *Sandbox) Resume(ctx context.Context) error { return s.update(s.client.Resume(ctx, s.ID)) }

// Events is Client.Events for this sandbox only.
func (s *Sandbox) Events(ctx context.Context, o api.EventOptions, fn func(api.Event) error) error {
	o.Sandbox = s.ID
	return s.client.Events(ctx, o, fn)
}
