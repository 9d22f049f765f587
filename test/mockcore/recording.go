package mockcore

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// kept is the one recording that there is.
func kept(name string) (api.RecordingInfo, error) {
	if name != "data" {
		return api.RecordingInfo{}, api.Errorf(api.CodeNotFound, "there is no recording %s", name)
	}
	return api.RecordingInfo{Name: name, Tenant: "t", Sandbox: "sb-1", Endpoint: "model", CreatedAt: time.Unix(1, 0).UTC(), Exchanges: 2, Omitted: 1, Bytes: 10, Active: true}, nil
}

// Recordings lists one that is named data.
func (c *Core) Recordings(context.Context, core.Caller) (api.RecordingList, error) {
	info, err := kept("data")
	return api.RecordingList{Recordings: []api.RecordingInfo{info}}, err
}

// GetRecording tells of it.
func (c *Core) GetRecording(_ context.Context, _ core.Caller, name string) (api.RecordingInfo, error) {
	return kept(name)
}

// ReadRecording writes two lines.
func (c *Core) ReadRecording(_ context.Context, _ core.Caller, name string, w io.Writer) error {
	if _, err := kept(name); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "{}\n{}")
	return err
}

// PutRecording takes anything but nothing, which stands for what is there.
func (c *Core) PutRecording(_ context.Context, _ core.Caller, name string, r io.Reader) (api.RecordingInfo, error) {
	n, err := io.Copy(io.Discard, r)
	if n == 0 {
		return api.RecordingInfo{}, api.Errorf(api.CodeExists, "there is a recording %s", name)
	}
	return api.RecordingInfo{Name: name, CreatedAt: time.Unix(1, 0).UTC(), Bytes: n}, err
}

// RemoveRecording finds it, every time.
func (c *Core) RemoveRecording(_ context.Context, _ core.Caller, name string) error {
	_, err := kept(name)
	return err
}
