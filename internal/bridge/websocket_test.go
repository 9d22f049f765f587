package bridge_test

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche"
)

// TestWebSocket: messages of every size come back as they were sent, and so does the
// end.
func TestWebSocket(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(-1)
		for {
			kind, data, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	in := open(t, cloche.Endpoint{Target: srv.URL}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, in.base, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20, 5 << 20} {
		sent := bytes.Repeat([]byte("\x00\xffa\n"), size/4+1)[:size]
		if err := ws.Write(ctx, websocket.MessageBinary, sent); err != nil {
			t.Fatal(err)
		}
		if kind, got, err := ws.Read(ctx); err != nil || kind != websocket.MessageBinary || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back as %d: %v", size, len(got), err)
		}
	}
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
}
