package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// sandboxes serves the routes of sandboxes: create, list, state, leases and batches.
type sandboxes struct{ *Server }

func (s sandboxes) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes", "create", paceWork, s.createSandbox},
		{http.MethodPost, "/v1/sandboxes/stream", "create", paceWork, s.createSandboxStream},
		{http.MethodGet, "/v1/sandboxes", "list", paceCall, s.listSandboxes},
		{http.MethodDelete, "/v1/sandboxes", "remove", paceChange, s.removeKeyed},
		{http.MethodPost, "/v1/batch/create", "create", paceWork, s.createMany},
		{http.MethodPost, "/v1/batch/status", "get", paceCall, s.statusMany},
		{http.MethodPost, "/v1/batch/remove", "remove", paceWork, s.removeMany},
		{http.MethodGet, "/v1/sandboxes/{ref}", "get", paceCall, s.getSandbox},
		{http.MethodDelete, "/v1/sandboxes/{ref}", "remove", paceChange, s.removeSandbox},
		{http.MethodGet, "/v1/sandboxes/{ref}/stats", "get", paceCall, s.stats},
		{http.MethodPost, "/v1/sandboxes/{ref}/start", "start", paceWork, s.startSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/stop", "stop", paceChange, s.stopSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/kill", "kill", paceChange, s.killSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/heartbeat", "heartbeat", paceCall, s.heartbeat},
		{http.MethodPost, "/v1/sandboxes/{ref}/extend", "extend", paceCall, s.extend},
		{http.MethodPost, "/v1/sandboxes/{ref}/pause", "pause", paceChange, s.pause},
		{http.MethodPost, "/v1/sandboxes/{ref}/suspend", "suspend", paceWork, s.suspend},
		{http.MethodPost, "/v1/sandboxes/{ref}/fork", "fork", paceWork, s.fork},
		{http.MethodPost, "/v1/sandboxes/{ref}/resume", "resume", paceWork, s.resume},
		{http.MethodGet, "/v1/hold", "create", paceWait, s.hold},
	}
}

// maxGrace is the longest grace period of a stop.
const maxGrace = 10 * time.Minute

const ndjson = "application/x-ndjson"

func (s sandboxes) createSandbox(w http.ResponseWriter, r request) error {
	var spec api.SandboxSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	if err := r.keyOf(&spec.IdempotencyKey); err != nil {
		return err
	}
	if !accepts(r, ndjson) {
		sb, err := s.core.Create(r.Context(), r.caller, spec, nil)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusCreated, sb)
		return nil
	}
	// The status is sent with the first line, so that a refusal, which comes
	// before any step, is still an answer of its own.
	lines := newLineWriter(w, http.StatusCreated)
	defer lines.close()
	// A failed progress report does not stop the pull. Only the context does.
	ctx := core.WithPullProgress(r.Context(), func(p api.PullProgress) { _ = lines.write(api.ServerMessage{Pull: &p}) })
	sb, err := s.core.Create(ctx, r.caller, spec, func(step string) { _ = lines.write(api.ServerMessage{Step: step}) })
	if err != nil {
		return lines.fail(err, r)
	}
	return lines.write(api.ServerMessage{Sandbox: &sb})
}

func (s sandboxes) listSandboxes(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.ListOptions{
		Labels: q.labels(), States: q.states(), Cursor: q.str("cursor"),
		Limit: int(q.integer("limit", 0, 0, 1000)),
	}
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.List(r.Context(), r.caller, o)
	if err != nil {
		return err
	}
	l.Sandboxes = nonNil(l.Sandboxes)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s sandboxes) getSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return answer(w)(s.core.Get(r.Context(), r.caller, r.ref()))
}

func (s sandboxes) stats(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	st, err := s.core.Stats(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

// Operations that end a sandbox continue when their caller disconnects, because a partial teardown
// is useless.

func (s sandboxes) removeSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return answer(w)(s.core.Delete(context.WithoutCancel(r.Context()), r.caller, r.ref()))
}

// removeKeyed deletes by the key of a creation, which may not have come yet.
func (s sandboxes) removeKeyed(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	key := q.str("idempotency_key")
	if err := q.end(); err != nil {
		return err
	}
	if key == "" {
		return api.Invalid("idempotency_key", "no idempotency key is named").
			WithHint("DELETE /v1/sandboxes/{ref} removes one sandbox, POST /v1/batch/remove many")
	}
	return answer(w)(s.core.DeleteKeyed(context.WithoutCancel(r.Context()), r.caller, key))
}

func (s sandboxes) stopSandbox(w http.ResponseWriter, r request) error {
	var o api.StopOptions
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &o); err != nil {
		return err
	}
	var grace *time.Duration
	if o.GraceMS != nil {
		if *o.GraceMS < 0 || *o.GraceMS > maxGrace.Milliseconds() {
			return api.Invalid("grace_ms", "grace_ms is %d", *o.GraceMS).WithHint("want 0 to %d", maxGrace.Milliseconds())
		}
		d := time.Duration(*o.GraceMS) * time.Millisecond
		grace = &d
		r.grace(d)
	}
	return answer(w)(s.core.Stop(context.WithoutCancel(r.Context()), r.caller, r.ref(), grace))
}

func (s sandboxes) killSandbox(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &struct{}{}); err != nil {
		return err
	}
	return answer(w)(s.core.Kill(context.WithoutCancel(r.Context()), r.caller, r.ref()))
}

// answer writes a sandbox's record.
func answer(w http.ResponseWriter) func(api.Sandbox, error) error {
	return func(sb api.Sandbox, err error) error {
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, sb)
		return nil
	}
}

// accepts reports whether the caller names a media type in Accept.
func accepts(r request, want string) bool {
	for _, h := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(h, ",") {
			if kind, _, err := mime.ParseMediaType(part); err == nil && kind == want {
				return true
			}
		}
	}
	return false
}

// nonNil keeps an empty list from being null in JSON.
func nonNil[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func (s sandboxes) heartbeat(w http.ResponseWriter, r request) error {
	return s.act(r.Context(), w, r, s.core.Heartbeat)
}

func (s sandboxes) extend(w http.ResponseWriter, r request) error {
	var x api.Extension
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &x); err != nil {
		return err
	}
	return answer(w)(s.core.Extend(r.Context(), r.caller, r.ref(), x))
}

func (s sandboxes) fork(w http.ResponseWriter, r request) error {
	var req api.ForkRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	out, err := s.core.Fork(r.Context(), r.caller, r.ref(), req)
	if err != nil {
		return err
	}
	out.BatchResult = wireBatch(out.BatchResult, r)
	writeJSON(w, http.StatusOK, out)
	return nil
}

// startSandbox ends a start whose caller disconnects: the sandbox stays stopped.
func (s sandboxes) startSandbox(w http.ResponseWriter, r request) error {
	return s.act(r.Context(), w, r, func(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
		return s.core.StartSandbox(ctx, caller, ref, nil)
	})
}

// A pause, a suspend or a resume continues when its caller disconnects, because a partial one is useless.

func (s sandboxes) pause(w http.ResponseWriter, r request) error {
	return s.act(context.WithoutCancel(r.Context()), w, r, s.core.Pause)
}

func (s sandboxes) suspend(w http.ResponseWriter, r request) error {
	return s.act(context.WithoutCancel(r.Context()), w, r, s.core.Suspend)
}

func (s sandboxes) resume(w http.ResponseWriter, r request) error {
	return s.act(context.WithoutCancel(r.Context()), w, r, s.core.Resume)
}

// act serves an operation whose only argument is its sandbox.
func (s sandboxes) act(ctx context.Context, w http.ResponseWriter, r request, verb func(context.Context, core.Caller, string) (api.Sandbox, error)) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &struct{}{}); err != nil {
		return err
	}
	return answer(w)(verb(ctx, r.caller, r.ref()))
}

// hold makes a sandbox that lives as long as the socket.
func (s sandboxes) hold(w http.ResponseWriter, r request) error {
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

// keyHeader is the header of a request that can be repeated. It has the same meaning as the key in
// a body, and each is the default of the other.
const keyHeader = "Idempotency-Key"

// headerKey returns the key of the request's header, or "". It refuses an invalid key.
func (r request) headerKey() (string, error) {
	given := r.Header.Values(keyHeader)
	switch {
	case len(given) == 0:
		return "", nil
	case len(given) > 1:
		return "", api.Invalid("idempotency_key", "the request has %d headers %s", len(given), keyHeader)
	case !api.ValidIdempotencyKey(given[0]):
		return "", api.Invalid("idempotency_key", "the header %s is not a key", keyHeader).
			WithHint("a key is 1 to %d printable ASCII characters", api.MaxIdempotencyKey)
	}
	return given[0], nil
}

// keyOf sets the key of a body from the header. Two that differ are an error.
func (r request) keyOf(body *string) error {
	key, err := r.headerKey()
	if err != nil || key == "" {
		return err
	}
	if *body != "" && *body != key {
		return api.Invalid("idempotency_key", "the header %s and the field idempotency_key differ", keyHeader).WithHint("send one of them")
	}
	*body = key
	return nil
}

// execIDOf sets the id of a process from the header, where the body has none: a request with
// the id of a process gets that process. A key that is not a valid id stands for its hash.
func (r request) execIDOf(id *string) error {
	key, err := r.headerKey()
	if err != nil || key == "" || *id != "" {
		return err
	}
	*id = key
	if !api.ValidName(key) {
		sum := sha256.Sum256([]byte(key))
		*id = "key-" + hex.EncodeToString(sum[:16])
	}
	return nil
}

// createSandboxStream is createSandbox with an answer of lines.
func (s sandboxes) createSandboxStream(w http.ResponseWriter, r request) error {
	r.Header.Set("Accept", ndjson)
	return s.createSandbox(w, r)
}
