package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/coder/websocket"
)

// socketTimeout bounds how long a daemon may take to answer a handshake or the
// first message of an attach.
const socketTimeout = 30 * time.Second

// dialSocket opens a WebSocket. ctx bounds the handshake only. onPing, where it
// is not nil, is called for each of the daemon's pings, while somebody reads.
func (c *Client) dialSocket(ctx context.Context, path string, onPing func()) (*websocket.Conn, error) {
	o := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: c.header(nil)}
	if onPing != nil {
		o.OnPingReceived = func(context.Context, []byte) bool {
			onPing()
			return true
		}
	}
	conn, resp, err := websocket.Dial(ctx, c.url(path, nil), o)
	if err != nil {
		// The library leaves the first kilobyte of the body, which holds any error
		// of the handshake.
		if resp != nil && resp.Body != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, decodeError(resp)
		}
		return nil, c.failed(ctx, err)
	}
	conn.SetReadLimit(maxMessage)
	return conn, nil
}

// sendMessage writes one text frame.
func (c *Client) sendMessage(ctx context.Context, conn *websocket.Conn, m api.ClientMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return api.Errorf(api.CodeInvalid, "encode request: %w", err)
	}
	if err := conn.Write(ctx, websocket.MessageText, data); err != nil {
		return c.socketFailed(ctx, err)
	}
	return nil
}

// socketFailed classifies an error of an open WebSocket.
func (c *Client) socketFailed(ctx context.Context, err error) error {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return brokenAnswer("the daemon sent a message over %d bytes", maxMessage)
	}
	return c.failed(ctx, err)
}
