package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// sumTrailer holds the sum of a body, after it.
const sumTrailer = "X-Sum"

// caller has the connections of one run, and where it says what it found.
type caller struct {
	client *http.Client
	out    io.Writer
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// call is one request, with its whole answer.
func (c *caller) call(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, url, resp.Status, got)
	}
	return got, err
}

// posts sends requests of 1 KiB, which the target echoes.
func (c *caller) posts(ctx context.Context, n int, url string) error {
	body := bytes.Repeat([]byte("0123456789abcdef"), 64)
	took := make([]time.Duration, 0, n)
	for range n {
		began := time.Now()
		got, err := c.call(ctx, http.MethodPost, url, body)
		if err != nil {
			return err
		}
		took = append(took, time.Since(began))
		if !bytes.Equal(got, body) {
			return fmt.Errorf("the answer has %d bytes and is not what was sent", len(got))
		}
	}
	slices.Sort(took)
	fmt.Fprintf(c.out, "p50=%.3f p99=%.3f most=%.3f\n", ms(took[len(took)/2]), ms(took[len(took)*99/100]), ms(took[len(took)-1]))
	return nil
}

// sse reads a stream to its end, and counts the pieces in which it comes.
func (c *caller) sse(ctx context.Context, url string) error {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var first time.Duration
	pieces := 0
	for buf := make([]byte, 64<<10); ; {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			pieces++
			if first == 0 {
				first = time.Since(began)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(c.out, "first=%.3f total=%.3f pieces=%d\n", ms(first), ms(time.Since(began)), pieces)
	return nil
}

// summed is a stream that nothing can compress, and the sum of what was read of it.
type summed struct {
	from io.Reader
	hash.Hash
}

func noise(n int64) *summed {
	h := sha256.New()
	return &summed{io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), n), h), h}
}

func (s *summed) Read(p []byte) (int, error) { return s.from.Read(p) }

func (s *summed) hex() string { return hex.EncodeToString(s.Sum(nil)) }

// up sends a body without a length. The target says what sum it came to, and what
// the trailer said.
func (c *caller) up(ctx context.Context, n int64, url string) error {
	body, began := noise(n), time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Trailer = http.Header{sumTrailer: nil}
	// The trailer is read when the body has ended.
	req.Body, req.ContentLength = io.NopCloser(ending{body, func() { req.Trailer.Set(sumTrailer, body.hex()) }}), -1
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if want := body.hex() + " " + body.hex(); strings.TrimSpace(string(got)) != want {
		return fmt.Errorf("the target says %s: %q, want %q", resp.Status, got, want)
	}
	fmt.Fprintf(c.out, "up=%d total=%.3f\n", n, ms(time.Since(began)))
	return nil
}

// ending calls a function at the end of what it reads.
type ending struct {
	io.Reader
	end func()
}

func (e ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		e.end()
	}
	return n, err
}

func (c *caller) down(ctx context.Context, n int64, url string) error {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	h := sha256.New()
	got, err := io.CopyBuffer(h, struct{ io.Reader }{resp.Body}, make([]byte, 256<<10))
	if err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); got != n || resp.ContentLength >= 0 || resp.Trailer.Get(sumTrailer) != sum {
		return fmt.Errorf("%s with %d bytes of %d, length %d, sum %s, trailer %q", resp.Status, got, n, resp.ContentLength, sum, resp.Trailer)
	}
	fmt.Fprintf(c.out, "down=%d total=%.3f\n", n, ms(time.Since(began)))
	return nil
}

// socket sends messages of many sizes and kinds to who echoes them.
func (c *caller) socket(ctx context.Context, url string) error {
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: c.client})
	if resp != nil && resp.Body != nil {
		resp.Body.Close() // of a refusal; one that was taken has none
	}
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	text := bytes.Repeat([]byte("a b "), 1<<18)
	binary := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(binary) // it cannot fail
	sent := 0
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
		for kind, data := range map[websocket.MessageType][]byte{websocket.MessageText: text, websocket.MessageBinary: binary} {
			if err := ws.Write(ctx, kind, data[:size]); err != nil {
				return err
			}
			k, got, err := ws.Read(ctx)
			if err != nil {
				return err
			}
			if k != kind || !bytes.Equal(got, data[:size]) {
				return fmt.Errorf("a message of %d bytes came back as one of %d", size, len(got))
			}
			sent++
		}
	}
	if err := ws.Close(websocket.StatusNormalClosure, "enough"); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "messages=%d\n", sent)
	return nil
}

// hung times a request beside others that get no answer.
func (c *caller) hung(ctx context.Context, n int, hung, url string) error {
	life, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	begun := make(chan error, n)
	for range n {
		wg.Go(func() { begun <- c.begin(life, hung) })
	}
	for range n {
		if err := <-begun; err != nil {
			return err
		}
	}
	// The first makes the connection that the others use.
	var took []time.Duration
	for range 10 {
		began := time.Now()
		if _, err := c.call(ctx, http.MethodGet, url, nil); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took[1:])
	fmt.Fprintf(c.out, "first=%.3f p50=%.3f\n", ms(took[0]), ms(took[5]))
	return nil
}

// begin starts a request whose answer has a first byte and no end, and leaves it open
// until ctx ends.
func (c *caller) begin(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { resp.Body.Close() })
	_, err = io.ReadFull(resp.Body, make([]byte, 1))
	return err
}

// open is begin many times, for as long as it may.
func (c *caller) open(ctx context.Context, n int, url string) error {
	for range n {
		if err := c.begin(ctx, url); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.out, "open=%d\n", n)
	<-ctx.Done()
	return nil
}

// turns is what an agent under evaluation does: it asks the model, uses a tool that
// the model names, tells the result, and asks whether that is the end.
func (c *caller) turns(ctx context.Context, n int, base string) error {
	began := time.Now()
	for i := range n {
		for _, step := range []struct{ path, body, want string }{
			{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"go on"}],"stream":true}`, "data: [DONE]"},
			{"/vf/tools/add", fmt.Sprintf(`{"arguments":{"a":%d,"b":1}}`, i), fmt.Sprintf(`{"result":%d}`, i+1)},
			{"/vf/stop", `{}`, `{"done":false}`},
		} {
			got, err := c.call(ctx, http.MethodPost, base+step.path, []byte(step.body))
			if err != nil {
				return err
			}
			if !bytes.Contains(got, []byte(step.want)) {
				return fmt.Errorf("%s says %q, want %s", step.path, got, step.want)
			}
		}
	}
	fmt.Fprintf(c.out, "turns=%d total=%.3f\n", n, ms(time.Since(began)))
	return nil
}
