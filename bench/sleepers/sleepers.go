//go:build linux

// Package sleepers drives sandboxes with a small web app, many of which are suspended. It is for benchmarks.
package sleepers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// appPort is where the web app listens.
const appPort = 8000

// webApp counts its requests, and holds as many MiB as its argument says.
const webApp = `
import http.server, random, sys
rng = random.Random(7)
state = b"".join(rng.randbytes(1 << 20) for _ in range(int(sys.argv[1])))
class Handler(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Handler.count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d\n" % Handler.count)
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`

// Start creates a sandbox with the web app, which holds as many MiB as it is told, and returns when that listens.
func Start(ctx context.Context, c *client.Client, spec api.SandboxSpec, mib string) (*client.Sandbox, error) {
	spec.Workspace = nil
	sb, err := c.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	p, err := sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"python3", "-c", webApp, mib}}, Ready: &api.Readiness{Port: appPort, IntervalMS: 10}})
	if err == nil {
		_, err = sb.WaitProcess(ctx, p.ExecID, api.WaitRequest{Ready: true, TimeoutMS: 60_000})
	}
	if err != nil {
		return nil, errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
	}
	return sb, nil
}

// Get asks the web app of a sandbox, and returns its answer: the number of requests that it has had.
func Get(ctx context.Context, c *client.Client, ref string) (int, error) {
	conn, err := c.DialPort(ctx, ref, appPort)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var count int
	if _, err = fmt.Fscan(res.Body, &count); err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the web app answered %s", res.Status)
	}
	return count, err
}

// Set are many sandboxes that started from a snapshot with the web app. Few of them run, and the others are suspended. It is not
// safe for concurrent use.
type Set struct {
	c        *client.Client
	snapshot string
	most     int
	ids      []string
	// awake are those that run, in the order of their last request.
	awake []string
	// asked counts the requests to each.
	asked map[string]int
}

// New returns an empty set of sandboxes from a snapshot, of which most run at a time.
func New(c *client.Client, snapshot string, most int) *Set {
	return &Set{c: c, snapshot: snapshot, most: most, asked: map[string]int{}}
}

// Add creates one more and suspends it. It returns how long the create took, and both.
func (s *Set) Add(ctx context.Context) (created, suspended time.Duration, err error) {
	began := time.Now()
	sb, err := s.c.Create(ctx, api.SandboxSpec{Snapshot: s.snapshot, AutoResume: true})
	if err != nil {
		return 0, 0, err
	}
	s.ids = append(s.ids, sb.ID)
	created = time.Since(began)
	_, err = s.c.Suspend(ctx, sb.ID)
	return created, time.Since(began), err
}

// pick returns n suspended sandboxes. Before, it suspends those that have run longest, so that not too many run.
func (s *Set) pick(ctx context.Context, n int) (ids []string, err error) {
	for len(s.awake) > s.most-n {
		if _, err := s.c.Suspend(ctx, s.awake[0]); err != nil {
			return nil, err
		}
		s.awake = s.awake[1:]
	}
	for len(ids) < n {
		if id := s.ids[rand.IntN(len(s.ids))]; !slices.Contains(s.awake, id) {
			ids = append(ids, id)
			s.awake = append(s.awake, id)
		}
	}
	return ids, nil
}

// ask sends a request to one, and compares the number of its requests.
func (s *Set) ask(ctx context.Context, id string, before int) error {
	count, err := Get(ctx, s.c, id)
	if err == nil && count != before+1 {
		err = fmt.Errorf("sandbox %s has lost requests: it answered %d, want %d", id, count, before+1)
	}
	return err
}

// Wake sends a request to n suspended ones at once, and returns the times of the fastest and the slowest answer.
func (s *Set) Wake(ctx context.Context, n int) (fastest, slowest time.Duration, err error) {
	ids, err := s.pick(ctx, n)
	if err != nil {
		return 0, 0, err
	}
	took, errs := make([]time.Duration, n), make([]error, n)
	var wg sync.WaitGroup
	for i, id := range ids {
		before := s.asked[id]
		s.asked[id]++
		wg.Go(func() {
			began := time.Now()
			errs[i] = s.ask(ctx, id, before)
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	return slices.Min(took), slices.Max(took), errors.Join(errs...)
}

// Lost returns an error if one is neither suspended nor running.
func (s *Set) Lost(ctx context.Context) error {
	for _, id := range s.ids {
		sb, err := s.c.Get(ctx, id)
		if err != nil {
			return err
		}
		if sb.State != api.StateSuspended && sb.State != api.StateRunning {
			return fmt.Errorf("sandbox %s is %s: %s", id, sb.State, sb.Reason)
		}
	}
	return nil
}

// Remove removes all.
func (s *Set) Remove(ctx context.Context) error {
	var errs []error
	for ids := range slices.Chunk(s.ids, api.MaxBatch) {
		res, err := s.c.RemoveMany(ctx, api.BatchSelect{IDs: ids})
		errs = append(errs, err)
		for _, f := range res.Failed {
			errs = append(errs, f.Error)
		}
	}
	return errors.Join(errs...)
}
