package client

import (
	"context"
	"io"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// recordingType is the content type of a recording: JSON lines.
const recordingType = "application/jsonl"

// Recordings returns the recordings of endpoints, sorted by name.
func (c *Client) Recordings(ctx context.Context) (api.RecordingList, error) {
	var list api.RecordingList
	return list, c.call(ctx, http.MethodGet, "/recordings", nil, nil, &list)
}

// Recording returns the record of one recording.
func (c *Client) Recording(ctx context.Context, name string) (api.RecordingInfo, error) {
	var info api.RecordingInfo
	path, err := recordingPath(name, "")
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, nil, &info)
	}
	return info, err
}

// OpenRecording streams a recording as JSON lines, up to its present end. An io.EOF from the reader
// means that everything was read. The caller closes it.
func (c *Client) OpenRecording(ctx context.Context, name string) (io.ReadCloser, error) {
	path, err := recordingPath(name, "/data")
	if err != nil {
		return nil, err
	}
	return c.download(ctx, path, nil)
}

// PutRecording uploads a recording under an unused name.
func (c *Client) PutRecording(ctx context.Context, name string, r io.Reader) (api.RecordingInfo, error) {
	var info api.RecordingInfo
	path, err := recordingPath(name, "/data")
	if err == nil {
		err = c.upload(ctx, http.MethodPut, path, nil, recordingType, r, &info)
	}
	return info, err
}

// RemoveRecording removes a recording. Endpoints that replay it continue.
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
