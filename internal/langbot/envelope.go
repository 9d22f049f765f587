package langbot

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// request is one call as it came.
type request struct {
	// id is answered as it came.
	id     json.Number
	action string
	data   json.RawMessage
	// place is nil without a context.
	place *placement
}

// response is one answer.
type response struct {
	SeqID       json.Number `json:"seq_id"`
	Code        int         `json:"code"`
	Message     string      `json:"message"`
	Data        any         `json:"data"`
	ChunkStatus string      `json:"chunk_status"`
}

// succeeded answers with data, which is an object.
func succeeded(id json.Number, data any) response {
	if data == nil {
		data = struct{}{}
	}
	return response{id, 0, "success", data, "continue"}
}

func refusedWith(id json.Number, err error) response {
	return response{id, 1, wireError(err), struct{}{}, "continue"}
}

// encode writes the answer as one line of ASCII without the HTML escapes, which would
// make a piece of a longer answer longer than a line may be.
func (r response) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// errIgnored: a frame that is answered with nothing.
var errIgnored = errors.New("the frame is no request")

// parseRequest reads one frame. errIgnored is for what is answered with nothing;
// another error is answered where the request has an id.
func parseRequest(frame []byte) (request, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(frame, &fields) != nil || fields == nil {
		return request{}, errIgnored
	}
	if _, answer := fields["code"]; answer {
		return request{}, errIgnored
	}
	r := request{data: fields["data"]}
	if json.Unmarshal(fields["action"], &r.action) != nil {
		return request{}, errIgnored
	}
	dec := json.NewDecoder(bytes.NewReader(fields["seq_id"]))
	dec.UseNumber()
	var id any
	if dec.Decode(&id) != nil {
		return request{}, errIgnored
	}
	number, ok := id.(json.Number)
	if !ok || strings.ContainsAny(number.String(), ".eE") || len(number) > 20 {
		return request{}, errIgnored
	}
	r.id = number
	if t := bytes.TrimSpace(r.data); len(t) == 0 || t[0] != '{' {
		return r, failed(classEnvelope, "data: an object is needed")
	}
	if c := bytes.TrimSpace(fields["context"]); len(c) > 0 && !bytes.Equal(c, []byte("null")) {
		p, err := parseContext(c)
		if err != nil {
			return r, err
		}
		r.place = &p
	}
	return r, nil
}

// parseContext reads for whom a request is. The parts about a plugin's installation
// are checked and left.
func parseContext(data []byte) (placement, error) {
	var c struct {
		Instance     *string      `json:"instance_uuid"`
		Workspace    *string      `json:"workspace_uuid"`
		Generation   *json.Number `json:"placement_generation"`
		Installation *string      `json:"installation_uuid"`
		Revision     *json.Number `json:"runtime_revision"`
		Digest       *string      `json:"artifact_digest"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	if err := dec.Decode(&c); err != nil {
		return placement{}, failed(classEnvelope, "context: it is no context of an action, or has a key that none has")
	}
	p := placement{Generation: 1}
	if c.Instance == nil || c.Workspace == nil {
		return p, failed(classEnvelope, "context: instance_uuid and workspace_uuid are needed")
	}
	p.Instance, p.Workspace = strings.TrimSpace(*c.Instance), strings.TrimSpace(*c.Workspace)
	if p.Instance == "" || p.Workspace == "" || len(p.Workspace) > maxWorkspaceID || len(p.Instance) > maxWorkspaceID {
		return p, failed(classEnvelope, "context: instance_uuid and workspace_uuid have 1 to %d characters", maxWorkspaceID)
	}
	if c.Generation != nil {
		n, err := c.Generation.Int64()
		if err != nil || n < 1 {
			return p, failed(classEnvelope, "context: placement_generation is a whole number from 1")
		}
		p.Generation = n
	}
	if c.Revision != nil {
		if n, err := c.Revision.Int64(); err != nil || n < 1 || c.Installation == nil {
			return p, failed(classEnvelope, "context: runtime_revision is a whole number from 1, of an installation")
		}
	}
	if c.Digest != nil && (len(*c.Digest) != 64 || strings.Trim(*c.Digest, "0123456789abcdef") != "") {
		return p, failed(classEnvelope, "context: artifact_digest has 64 lower-case hexadecimal digits")
	}
	return p, nil
}

// maxWorkspaceID bounds the ids of a context.
const maxWorkspaceID = 256

// decode reads the data of an action into T, where unknown keys are no mistake.
func decode[T any](data json.RawMessage) (T, error) {
	var v T
	dec := json.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&v)
	if err == nil {
		_, err = dec.Token()
		if errors.Is(err, io.EOF) {
			return v, nil
		}
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return v, failed(classValidation, "%s: %s is not what belongs there", wrong.Field, wrong.Value)
	}
	return v, failed(classValidation, "the data cannot be read")
}
