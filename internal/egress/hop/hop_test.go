package hop_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/hop"
)

// TestAsked: WebSocket alone passes, by GET and without a body.
func TestAsked(t *testing.T) {
	upgrade := []string{"Upgrade"}
	for _, c := range []struct {
		name string
		head hop.Head
		want hop.Upgrade
	}{
		{"none", hop.Head{Method: "GET", HTTP11: true}, hop.Ignored},
		{"WebSocket", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"websocket"}, Connection: upgrade}, hop.WebSocket},
		{"in other letters", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"\tWebSocket "}, Connection: []string{"keep-alive, UPGRADE"}}, hop.WebSocket},
		{"h2c", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"h2c"}, Connection: upgrade}, hop.Ignored},
		{"a list", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"websocket, h2c"}, Connection: upgrade}, hop.Ignored},
		{"a list that begins empty", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{", websocket"}, Connection: upgrade}, hop.Ignored},
		{"two fields", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"websocket", "h2c"}, Connection: upgrade}, hop.Ignored},
		{"with a version", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"websocket/13"}, Connection: upgrade}, hop.Ignored},
		{"not named by Connection", hop.Head{Method: "GET", HTTP11: true, Upgrade: []string{"websocket"}, Connection: []string{"keep-alive"}}, hop.Ignored},
		{"of HTTP/1.0", hop.Head{Method: "GET", Upgrade: []string{"websocket"}, Connection: upgrade}, hop.Ignored},
		{"POST", hop.Head{Method: "POST", HTTP11: true, Upgrade: []string{"websocket"}, Connection: upgrade}, hop.Malformed},
		{"a body", hop.Head{Method: "GET", HTTP11: true, Body: true, Upgrade: []string{"websocket"}, Connection: upgrade}, hop.Malformed},
	} {
		if got := hop.Asked(c.head); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestStrip: what ends at this hop goes, also by the name that Connection gives it.
func TestStrip(t *testing.T) {
	h := http.Header{
		"Connection": {"close, X-Mine", " x-Other ,"}, "Upgrade": {"h2c"}, "Http2-Settings": {"x"}, "Keep-Alive": {"5"}, "Proxy-Connection": {"close"},
		"Proxy-Authorization": {"x"}, "Proxy-Else": {"x"}, "Te": {"gzip, Trailers"}, "Trailer": {"X-A"}, "Transfer-Encoding": {"gzip"}, "X-Mine": {"x"},
		"x-other": {"x"}, "Accept": {"*/*"},
	}
	hop.Strip(h)
	want := http.Header{"Te": {"trailers"}, "Accept": {"*/*"}}
	if !maps.EqualFunc(h, want, slices.Equal) {
		t.Errorf("%v, want %v", h, want)
	}
	h = http.Header{"Te": {"gzip, trailers;q=0"}}
	if hop.Strip(h); len(h) > 0 {
		t.Errorf("%v is left", h)
	}
}

// TestSwitched: the answer names WebSocket alone.
func TestSwitched(t *testing.T) {
	for _, c := range []struct {
		header http.Header
		want   bool
	}{
		{http.Header{"Upgrade": {"websocket"}, "Connection": {"upgrade"}}, true},
		{http.Header{"Upgrade": {"h2c"}, "Connection": {"upgrade"}}, false},
		{http.Header{"Upgrade": {"websocket", "h2c"}, "Connection": {"upgrade"}}, false},
		{http.Header{"Upgrade": {"websocket"}}, false},
		{http.Header{}, false},
	} {
		if got := hop.Switched(c.header); got != c.want {
			t.Errorf("%v: %v", c.header, got)
		}
	}
}
