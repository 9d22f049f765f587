//go:build linux

package envd_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A process that the end of its sandbox terminates did not end by itself: its stream breaks off, without
// an end of the process and without a trailer.
func TestStreamIsCutWhenTheSandboxStops(t *testing.T) {
	f := newFixture(t)
	body := envelope(`{"process":{"cmd":"/bin/sh","args":["-c","echo hi; exec sleep 60"],"envs":{}},"stdin":false}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/process.Process/Start", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"X-Access-Token": token, "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	stream := bufio.NewReader(res.Body)
	if text, err := stream.ReadString('}'); err != nil || !strings.Contains(text, "start") {
		t.Fatalf("the stream begins with %q, %v", text, err)
	}
	if _, err := f.Service.Stop(t.Context(), operator, f.box.ID, nil); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stream)
	if !errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(string(rest), `"end"`) {
		t.Errorf("the stream ends by %v, after %q", err, rest)
	}
}
