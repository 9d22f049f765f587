//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// The subjects of large files through E2B's API, and through a file server on the same disk.
const (
	fileUp     = "1 GiB up by E2B's API"
	fileDown   = "1 GiB down by E2B's API"
	serverUp   = "1 GiB up to a file server"
	serverDown = "1 GiB down from a file server"

	transferBytes = 1 << 30
	// e2bKey is any key: the daemon knows its own user.
	e2bKey = "e2b_00"
	// transferRounds are the rounds of these subjects: each takes ten seconds.
	transferRounds = 5
)

// zeros is a file of zeros, which is read once.
type zeros struct{ left int64 }

// Read implements io.Reader.
func (z *zeros) Read(b []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), z.left))
	clear(b[:n])
	z.left -= int64(n)
	return n, nil
}

// transferSubjects move a file of 1 GiB in and out of the workspace of a sandbox of E2B's API, and to and
// from a file server below the same directory.
func transferSubjects(ctx context.Context, c *client.Client, dir string, undo *[]func() error) ([]subject, error) {
	at, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	id, headers, err := e2bSandbox(ctx, at.E2BURL)
	if err != nil {
		return nil, err
	}
	*undo = append(*undo, func() error {
		_, err := send(context.WithoutCancel(ctx), http.MethodDelete, at.E2BURL+"/sandboxes/"+id, nil, map[string]string{"X-API-Key": e2bKey})
		return err
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "served")
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.ServeFile(w, r, file)
			return
		}
		f, err := os.Create(file)
		if err == nil {
			_, err = io.Copy(f, r.Body)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})}
	go func() { _ = server.Serve(ln) }() // ends with Close
	*undo = append(*undo, server.Close)
	ours, theirs := at.E2BURL+"/files?path=/home/user/large", "http://"+ln.Addr().String()+"/"
	move := func(method, url string) func(context.Context) (measure, error) {
		return func(ctx context.Context) (measure, error) {
			var body io.Reader
			if method == http.MethodPost {
				body = &zeros{transferBytes}
			}
			if method == http.MethodPost && url == ours {
				// Two of them are more than the workspace's default bound.
				_ = c.Files("sb-"+id, api.FileAccess{}).Remove(ctx, "/home/user/large", api.RemoveFileOptions{})
			}
			began := time.Now()
			n, err := send(ctx, method, url, body, headers)
			took := time.Since(began)
			if err == nil && method == http.MethodGet && n != transferBytes {
				err = fmt.Errorf("%d bytes came", n)
			}
			return measure{Total: took}, err
		}
	}
	for _, url := range []string{ours, theirs} { // the first subject may be one that reads
		if _, err := move(http.MethodPost, url)(ctx); err != nil {
			return nil, err
		}
	}
	return []subject{
		{name: fileUp, how: "POST /files into the workspace", run: move(http.MethodPost, ours)},
		{name: serverUp, how: "Go's net/http, io.Copy", run: move(http.MethodPost, theirs)},
		{name: fileDown, how: "GET /files, not compressed", run: move(http.MethodGet, ours)},
		{name: serverDown, how: "Go's http.ServeFile, which is sendfile", run: move(http.MethodGet, theirs)},
	}, nil
}

// e2bSandbox makes a sandbox and returns its ID and the headers for its data plane.
func e2bSandbox(ctx context.Context, url string) (id string, headers map[string]string, err error) {
	key := map[string]string{"X-API-Key": e2bKey}
	r, err := request(ctx, http.MethodPost, url+"/sandboxes", strings.NewReader(`{"templateID":"base","timeout":3600}`), key)
	if err != nil {
		return "", nil, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", nil, err
	}
	defer res.Body.Close()
	var sb struct{ SandboxID, EnvdAccessToken string }
	if err := json.NewDecoder(res.Body).Decode(&sb); err != nil || sb.SandboxID == "" {
		return "", nil, fmt.Errorf("the sandbox is not made: status %d: %w", res.StatusCode, err)
	}
	key["E2b-Sandbox-Id"], key["E2b-Sandbox-Port"], key["X-Access-Token"] = sb.SandboxID, "49983", sb.EnvdAccessToken
	key["Accept-Encoding"], key["Content-Type"] = "identity", "application/octet-stream"
	return sb.SandboxID, key, nil
}

func request(ctx context.Context, method, url string, body io.Reader, headers map[string]string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	return r, nil
}

// send sends a request and returns how many bytes came back.
func send(ctx context.Context, method, url string, body io.Reader, headers map[string]string) (int64, error) {
	r, err := request(ctx, method, url, body, headers)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, res.Body)
	if res.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return n, errors.Join(err, res.Body.Close())
}
