package langbot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// relays serves the connections of processes.
type relays struct{ *Server }

const (
	// relayPing is how often the client of a relay is asked whether it is there, and
	// relayPong how long it may take to say so.
	relayPing = 30 * time.Second
	relayPong = 15 * time.Second
	// relayWrite bounds how long a client may take for one line.
	relayWrite = 2 * time.Minute
)

// relay is one client at a process. The newest has it: a client whose connection is
// half dead must not keep itself out.
type relay struct {
	cancel context.CancelFunc
	once   sync.Once
	code   websocket.StatusCode
	reason string
	// over is closed when it has let the process go.
	over chan struct{}
}

// end ends it and waits until it has let go.
func (r *relay) end(code websocket.StatusCode, reason string) {
	r.once.Do(func() { r.code, r.reason = code, reason })
	r.cancel()
	<-r.over
}

// refuse answers in the form that the client of a relay reads.
func refuse(w http.ResponseWriter, err error) {
	c, text := classBox, wireError(err)
	var f *failure
	var e *api.Error
	if errors.As(err, &f) {
		c, text = f.class, f.text
	} else if errors.As(err, &e) {
		c, text = classOf(e.Code), e.Error()
	}
	answer(w, http.StatusBadRequest, map[string]any{"error": map[string]string{"code": string(c), "message": cutText(text, maxMessage)}})
}

// answer writes a JSON document.
func answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

// serveRelay connects a client with a process's input and output.
func (s relays) serveRelay(w http.ResponseWriter, r *http.Request) {
	who, err := s.enter(r, false)
	if err != nil {
		s.turnAway(w, r, err)
		return
	}
	place, logical, err := relayTarget(who, r)
	if err != nil {
		s.turnAway(w, r, err)
		return
	}
	ctx, land, ok := s.fence.enter(r.Context(), place)
	if !ok {
		s.turnAway(w, r, errors.New("no action of its workspace came in its generation"))
		return
	}
	defer land()
	if err := s.mayRelay(ctx, place); err != nil {
		refuse(w, s.clean(err))
		return
	}
	id := r.PathValue("process")
	if id == "" {
		id = usualProcess
	}
	x, m, err := s.relayed(ctx, place, logical, id)
	if err != nil {
		refuse(w, s.clean(err))
		return
	}
	if !s.begin() {
		refuse(w, failed(classRuntime, "the runtime is shutting down"))
		return
	}
	defer s.wg.Done()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{"mcp"}, CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true, // enter refuses web pages
	})
	if err != nil {
		return
	}
	conn.SetReadLimit(maxFrame)
	s.relay(ctx, conn, x, m)
}

// relayed finds the process of a relay, which must run.
func (s relays) relayed(ctx context.Context, place placement, logical, id string) (*session, *managed, error) {
	x, err := s.lookup(place, logical)
	if err != nil {
		return nil, nil, err
	}
	m, err := s.process(x, id)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.core.GetProcess(ctx, x.place.caller(), x.sandbox, m.rec.ExecID)
	if api.CodeOf(err) == api.CodeNotFound {
		return nil, nil, noProcess(id)
	}
	if err != nil {
		return nil, nil, s.whyNot(x, err)
	}
	s.note(m, p)
	if p.State.Ended() {
		return nil, nil, failed(classProcessConflict, "managed process %s is not running", clipped(id))
	}
	return x, m, nil
}

// relay carries lines both ways until either side leaves.
func (s relays) relay(ctx context.Context, conn *websocket.Conn, x *session, m *managed) {
	defer conn.CloseNow()
	defer s.use(x)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.live, cancel)()
	me := &relay{cancel: cancel, over: make(chan struct{})}
	a, err := s.takeOver(ctx, x, m, me)
	if err != nil {
		s.leave(m, me)
		_ = conn.Close(websocket.StatusTryAgainLater, "the process cannot be attached to")
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { defer cancel(); s.input(ctx, conn, x, a) })
	wg.Go(func() { defer cancel(); heartbeat(ctx, conn) })
	stop := context.AfterFunc(ctx, func() { _ = a.Close() })
	status, reason := s.output(ctx, conn, x, m, a)
	stop()
	_ = a.Close()
	s.leave(m, me)
	me.once.Do(func() {})
	if me.reason != "" {
		status, reason = me.code, me.reason
	}
	if s.live.Err() != nil {
		status, reason = websocket.StatusGoingAway, goingAway
	}
	_ = conn.Close(status, reason)
	cancel()
	wg.Wait()
}

// leave lets the process go.
func (s relays) leave(m *managed, me *relay) {
	s.mu.Lock()
	if m.relay == me {
		m.relay = nil
	}
	s.mu.Unlock()
	close(me.over)
}

// takeOver has the relay that is there leave, and attaches where it stopped.
func (s relays) takeOver(ctx context.Context, x *session, m *managed, me *relay) (Attachment, error) {
	for {
		s.mu.Lock()
		if s.sessions[x.physical] != x || x.processes[m.rec.ID] != m {
			s.mu.Unlock()
			return nil, noProcess(m.rec.ID) // it was taken away since it was found
		}
		before := m.relay
		if before == nil {
			m.relay = me
			next := m.next
			s.mu.Unlock()
			since := &next
			if next == fromEnd {
				since = nil
			}
			return s.core.Attach(ctx, x.place.caller(), x.sandbox, m.rec.ExecID, api.AttachRequest{Exclusive: true, Since: since})
		}
		s.mu.Unlock()
		before.end(websocket.StatusPolicyViolation, "another client took over")
	}
}

// input gives the process each message as a line, until the connection ends: a read that
// is interrupted takes the connection with it, and then nothing can be said of why.
func (s relays) input(ctx context.Context, conn *websocket.Conn, x *session, a Attachment) {
	for {
		kind, data, err := conn.Read(context.WithoutCancel(ctx))
		if err != nil || ctx.Err() != nil {
			return
		}
		if kind != websocket.MessageText {
			continue
		}
		s.touch(x)
		if a.Write(append(data, '\n')) != nil {
			return
		}
	}
}

func (s relays) touch(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.used = time.Now()
}

// output sends each line of the process's output as a message, and says how to close.
func (s relays) output(ctx context.Context, conn *websocket.Conn, x *session, m *managed, a Attachment) (websocket.StatusCode, string) {
	s.mu.Lock()
	l := lines{skip: m.torn}
	s.mu.Unlock()
	send := func(line []byte, next int64) bool {
		text := strings.ToValidUTF8(string(line), "\ufffd")
		within, cancel := context.WithTimeout(ctx, relayWrite)
		defer cancel()
		if ctx.Err() != nil || conn.Write(within, websocket.MessageText, []byte(text)) != nil {
			return false
		}
		s.mu.Lock()
		m.next, m.torn, x.used = next, false, time.Now()
		s.mu.Unlock()
		return true
	}
	for {
		ev, err := a.Recv()
		if err != nil {
			return websocket.StatusNormalClosure, ""
		}
		if len(ev.Data) > 0 && ev.Stream != api.Stderr {
			switch err := l.add(ev.Data, ev.Position, send); {
			case errors.Is(err, errLine):
				s.mu.Lock()
				m.next, m.torn = l.end, l.skip // the next client goes on behind the line
				s.mu.Unlock()
				return websocket.StatusMessageTooBig, "a line of the process is over 16 MiB"
			case err != nil:
				return websocket.StatusNormalClosure, ""
			}
		}
		if ev.Exit != nil {
			if len(l.part) > 0 {
				send(l.part, l.end)
			}
			return websocket.StatusNormalClosure, "the process ended"
		}
	}
}

// heartbeat ends when the client does not answer any more.
func heartbeat(ctx context.Context, conn *websocket.Conn) {
	every := time.NewTicker(relayPing)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			within, cancel := context.WithTimeout(ctx, relayPong)
			err := conn.Ping(within)
			cancel()
			if err != nil {
				return
			}
		}
	}
}

// lines puts lines together from what a process writes.
type lines struct {
	part []byte
	// end is the position behind the last byte.
	end int64
	// skip: what comes up to the end of the line is the rest of one that is too long.
	skip bool
}

var (
	errLine = errors.New("the line is too long")
	errSent = errors.New("the client takes no more")
)

// add gives each line that is complete now to send, without its end, and with the
// position behind it.
func (l *lines) add(data []byte, at int64, send func(line []byte, next int64) bool) error {
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		if l.skip {
			if i < 0 {
				return nil
			}
			at += int64(i + 1)
			data, l.skip = data[i+1:], false
			continue
		}
		if i < 0 {
			l.part, l.end = append(l.part, data...), at+int64(len(data))
			if len(l.part) > maxFrame {
				l.skip = true
				return errLine
			}
			return nil
		}
		line := append(l.part, data[:i]...) //nolint:gocritic // part is empty afterwards
		if len(line) > maxFrame {
			l.part, l.end = nil, at+int64(i+1)
			return errLine
		}
		at += int64(i + 1)
		data, l.part, l.end = data[i+1:], nil, at
		if !send(bytes.TrimSuffix(line, []byte("\r")), at) {
			return errSent
		}
	}
	return nil
}
