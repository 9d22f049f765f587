package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// hold makes a sandbox that lives as long as the socket.
func (s *Server) hold(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(sk *socket, first api.ClientMessage) error {
		if err := asks(first, "hold", first.Hold != nil); err != nil {
			return err
		}
		sk.wg.Go(sk.listen)
		sk.wg.Go(func() { sk.ping(readsAlways) })
		sb, release, err := s.core.Hold(core.WithPullProgress(sk.ctx, sk.pull), r.caller, *first.Hold, sk.step)
		if err != nil {
			return err
		}
		defer release()
		_ = sk.send(sk.ctx, api.ServerMessage{Sandbox: &sb})
		<-sk.ctx.Done()
		return nil
	})
}

// listen reads from a client that has nothing more to say, until it leaves.
func (k *socket) listen() {
	defer k.cancel()
	if _, _, err := k.conn.Read(k.ctx); err == nil {
		err := api.Invalid("body", "a stream that holds a sandbox takes one message").WithHint("close it to let the sandbox go")
		_ = k.send(k.ctx, api.ServerMessage{Error: toWire(err, request{})})
	}
}
