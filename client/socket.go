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

// socketTimeout limits how long a daemon can take to answer a handshake or the first message of an
// attach.
const socketTimeout = 30 * time.Second

// dialSocket opens a WebSocket. ctx limits only the handshake. If onPing is not nil, it is called
// for each ping of the daemon during a read.
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
		// The library returns the first kilobyte of the body, which contains any error of the
		// handshake.
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
