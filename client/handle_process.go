package client

import (
	"context"
	"io"
	"net"

	"github.com/cloche-dev/cloche/api"
)

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

// Pause is Client.Pause. It updates the handle's record.
func (s *Sandbox) Pause(ctx context.Context) error { return s.update(s.client.Pause(ctx, s.ID)) }

// Resume is Client.Resume. It updates the handle's record.
func (s *Sandbox) Resume(ctx context.Context) error { return s.update(s.client.Resume(ctx, s.ID)) }

// Events is Client.Events for this sandbox only.
func (s *Sandbox) Events(ctx context.Context, o api.EventOptions, fn func(api.Event) error) error {
	o.Sandbox = s.ID
	return s.client.Events(ctx, o, fn)
}
