package client

import (
	"context"
	"io"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// recordingType is a recording: JSON lines.
const recordingType = "application/jsonl"

// Recordings lists what endpoints recorded, by name.
func (c *Client) Recordings(ctx context.Context) (api.RecordingList, error) {
	var list api.RecordingList
	return list, c.call(ctx, http.MethodGet, "/recordings", nil, nil, &list)
}

// Recording tells of one.
func (c *Client) Recording(ctx context.Context, name string) (api.RecordingInfo, error) {
	var info api.RecordingInfo
	path, err := recordingPath(name, "")
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, nil, &info)
	}
	return info, err
}

// OpenRecording streams a recording as JSON lines, as far as it has been made. An
// io.EOF from the reader means that all of it was read. The caller closes it.
func (c *Client) OpenRecording(ctx context.Context, name string) (io.ReadCloser, error) {
	path, err := recordingPath(name, "/data")
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, http.MethodGet, path, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	return &body{ctx: ctx, c: c, resp: resp}, nil
}

// PutRecording keeps a recording that was made elsewhere, under a name that is free.
func (c *Client) PutRecording(ctx context.Context, name string, r io.Reader) (api.RecordingInfo, error) {
	var info api.RecordingInfo
	path, err := recordingPath(name, "/data")
	if err == nil {
		err = c.upload(ctx, http.MethodPut, path, nil, recordingType, r, &info)
	}
	return info, err
}

// RemoveRecording takes one away. Who replays it goes on.
func (c *Client) RemoveRecording(ctx context.Context, name string) error {
	path, err := recordingPath(name, "")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, path, nil, nil, nil)
}

func recordingPath(name, rest string) (string, error) {
	if !api.ValidName(name) {
		return "", api.Invalid("name", "%.80q cannot name a recording", name).
			WithHint("a name has 1 to %d of a-z, 0-9, '-', '_' and '.', and begins with a letter or digit", api.MaxNameLen)
	}
	return "/recordings/" + name + rest, nil
}
