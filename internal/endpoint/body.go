package endpoint

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint/filter"
)

// maxFiltered bounds the body of a request that is looked into.
const maxFiltered = 16 << 20

// filter looks into a request to a model's API, as the endpoint wants. False is that
// it has been answered.
func (x *exchange) filter(r *http.Request) bool {
	spec := x.up.spec.HTTP
	if spec == nil || spec.BodyFilter == "" || spec.BodyFilter == api.BodyFilterOff {
		return true
	}
	switch filter.Of(r.Method, strings.TrimSuffix(x.up.base.Path, "/")+x.decoded, len(r.Header["Upgrade"]) > 0) {
	case filter.Other, filter.Plain:
		return true
	case filter.Denied:
		x.detail = "this part of the API, which the endpoint's body_filter does not know as harmless"
		x.refuse(codeCapability)
		return false
	}
	if r.Body == nil || r.Body == http.NoBody {
		return true
	}
	if e := r.Header.Values("Content-Encoding"); len(e) > 1 || len(e) == 1 && !strings.EqualFold(e[0], "identity") {
		x.refuse(codeUnreadable)
		return false
	}
	body, err := x.buffered(r)
	if err != nil {
		x.broke(x.w, r, err)
		return false
	}
	out, removed, err := filter.Strip(body)
	switch {
	case errors.Is(err, filter.ErrModel):
		x.record.Filtered = []string{"model"}
		x.detail = "the model searches by itself"
		x.refuse(codeCapability)
		return false
	case err != nil:
		x.refuse(codeUnreadable)
		return false
	}
	x.record.Filtered = removed
	if len(removed) > 0 && spec.BodyFilter == api.BodyFilterRefuse {
		x.detail = strings.Join(removed, ", ")
		x.refuse(codeCapability)
		return false
	}
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(out)), int64(len(out)), nil
	// It was read as this, and must not be read as anything else.
	if typ, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || len(r.Header["Content-Type"]) != 1 ||
		typ != "application/json" || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		r.Header.Set("Content-Type", "application/json")
	}
	return true
}

// hold takes memory until the end of the exchange; false is that there is no more.
func (x *exchange) hold(n int64) bool {
	if !x.e.o.Share.buffer(n) {
		return false
	}
	x.held.Add(n)
	return true
}

// buffered reads the body of a request into memory, up to the end of the exchange.
func (x *exchange) buffered(r *http.Request) ([]byte, error) {
	var body []byte
	var taken int64
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if int64(len(body))+int64(n) > maxFiltered {
			return nil, &codedError{codeBody, errors.New("the body is over what is looked into")}
		}
		if need := int64(len(body) + n); need > taken {
			more := max(need-taken, min(taken, maxFiltered-taken))
			if !x.hold(more) {
				return nil, &codedError{codeBusy, errors.New("too much is in memory")}
			}
			taken += more
			body = append(make([]byte, 0, taken), body...)
		}
		body = append(body, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
