//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// poller answers what a sandbox asks by files: a path to a service of the host that
// needs only exec and file calls of a runtime. Endpoints replace it. A
// proxy inside writes each request to a file and looks for its answer every 100 ms; the
// host looks for requests every 200 ms, answers each, and writes the answer back.
type poller struct {
	sb     *client.Sandbox
	target string
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

const (
	pollDir   = "/tmp/polled"
	pollEvery = 200 * time.Millisecond
)

// pollProxy is what runs inside.
const pollProxy = `
import base64, http.server, json, os, sys, time, uuid
root = sys.argv[1]
class Proxy(http.server.BaseHTTPRequestHandler):
    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = uuid.uuid4().hex
        asked, answer = os.path.join(root, "asked", name), os.path.join(root, "answers", name)
        with open(asked + ".new", "w") as f:
            json.dump({"method": self.command, "path": self.path, "body": base64.b64encode(body).decode()}, f)
        os.rename(asked + ".new", asked)
        while not os.path.exists(answer):
            time.sleep(0.1)
        with open(answer) as f:
            said = json.load(f)
        os.remove(answer)
        body = base64.b64decode(said["body"])
        self.send_response(said["status"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = forward
    def log_message(self, *args): pass
for d in ("asked", "answers"): os.makedirs(os.path.join(root, d))
http.server.ThreadingHTTPServer(("127.0.0.1", 13131), Proxy).serve_forever()
`

func newPoller(ctx context.Context, sb *client.Sandbox, target string) (*poller, error) {
	spec := api.ProcessSpec{Ready: &api.Readiness{Port: 13131}}
	spec.Argv = []string{"/usr/bin/python3", "-c", pollProxy, pollDir}
	proxy, err := sb.StartProcess(ctx, spec)
	if err == nil {
		_, err = sb.WaitProcess(ctx, proxy.ExecID, api.WaitRequest{Ready: true})
	}
	if err != nil {
		return nil, fmt.Errorf("start the proxy inside: %w", err)
	}
	p := &poller{sb: sb, target: target}
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.wg.Go(func() { p.poll(ctx) })
	return p, nil
}

func (p *poller) close() {
	p.cancel()
	p.wg.Wait()
}

// poll looks for requests until ctx ends. One that fails is not answered, and the program that
// waits for it says so.
func (p *poller) poll(ctx context.Context) {
	seen := map[string]bool{}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		res, err := p.sb.Exec(ctx, "/usr/bin/find", pollDir+"/asked", "-type", "f", "-not", "-name", "*.new")
		if err != nil {
			continue
		}
		for name := range strings.FieldsSeq(string(res.Stdout)) {
			if seen[name] {
				continue
			}
			seen[name] = true
			p.wg.Go(func() { _ = p.answer(ctx, name) })
		}
	}
}

func (p *poller) answer(ctx context.Context, name string) error {
	data, err := p.sb.ReadFile(ctx, name)
	if err != nil {
		return err
	}
	var asked struct {
		Method, Path string
		Body         []byte
	}
	if err := json.Unmarshal(data, &asked); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, asked.Method, p.target+asked.Path, bytes.NewReader(asked.Body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	said, err := json.Marshal(map[string]any{"status": resp.StatusCode, "body": body})
	if err != nil {
		return err
	}
	// Under another name first: a reader must not find half an answer.
	to := path.Join(pollDir, "answers", path.Base(name))
	if err := p.sb.WriteFile(ctx, to+".new", said, 0o644); err != nil {
		return err
	}
	if _, err := p.sb.Exec(ctx, "/bin/mv", to+".new", to); err != nil {
		return err
	}
	_, err = p.sb.Exec(ctx, "/bin/rm", name)
	return err
}
