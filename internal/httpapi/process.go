package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func (s processes) startProcess(w http.ResponseWriter, r request) error {
	var spec api.ProcessSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	if err := r.execIDOf(&spec.ExecID); err != nil {
		return err
	}
	p, err := s.core.StartProcess(r.Context(), r.caller, r.ref(), spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, p)
	return nil
}

func (s processes) processes(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Processes(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, api.ProcessList{Processes: nonNil(l)})
	return nil
}

func (s processes) getProcess(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	p, err := s.core.GetProcess(r.Context(), r.caller, r.ref(), r.process())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, p)
	return nil
}

func (s processes) removeProcess(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	// It goes on when its caller leaves, as every end does.
	if err := s.core.RemoveProcess(context.WithoutCancel(r.Context()), r.caller, r.ref(), r.process()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s processes) waitProcess(w http.ResponseWriter, r request) error {
	var wait api.WaitRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &wait); err != nil {
		return err
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	p, err := s.core.WaitProcess(ctx, r.caller, r.ref(), r.process(), wait)
	if err != nil {
		return cut(ctx, err)
	}
	writeJSON(w, http.StatusOK, p)
	return nil
}

func (s processes) signalProcess(w http.ResponseWriter, r request) error {
	var sig api.SignalRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &sig); err != nil {
		return err
	}
	if err := s.core.SignalProcess(r.Context(), r.caller, r.ref(), r.process(), sig); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s processes) resizeProcess(w http.ResponseWriter, r request) error {
	var size api.Size
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &size); err != nil {
		return err
	}
	if err := s.core.ResizeProcess(r.Context(), r.caller, r.ref(), r.process(), size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxStdin is the most input that one request carries. More is sent in several,
// each with its offset.
const maxStdin = 1 << 30

func (s processes) writeStdin(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	offset, end := q.number("offset"), q.boolean("end")
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/octet-stream"); err != nil {
		return err
	}
	tooLarge := api.Errorf(api.CodeTooLarge, "the body of the request is over %d bytes", maxStdin).
		WithHint("send the rest in a request of its own, with its offset")
	if r.ContentLength > maxStdin {
		return tooLarge
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	raw := newRawReader(w, r)
	defer raw.close()
	// While the process takes nothing, nothing is read of the connection either, so
	// that a caller that died would not be noticed.
	ctx, stalled := context.WithCancelCause(ctx)
	defer stalled(nil)
	in := &taken{r: http.MaxBytesReader(w, io.NopCloser(raw), maxStdin), t: time.AfterFunc(stallTimeout, func() {
		stalled(api.Errorf(api.CodeTimeout, "the process took no input for %v", stallTimeout).
			WithHint("the process's record says how much it has taken"))
	})}
	defer in.t.Stop()
	ack, err := s.core.WriteStdin(ctx, r.caller, r.ref(), r.process(), offset, in, end)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge
	}
	if err != nil {
		return cut(ctx, err)
	}
	writeJSON(w, http.StatusOK, ack)
	return nil
}

// taken runs its timer while nothing is taken of it. How long its own source may
// take is not its affair.
type taken struct {
	r io.Reader
	t *time.Timer
}

func (k *taken) Read(p []byte) (int, error) {
	k.t.Stop()
	defer k.t.Reset(stallTimeout)
	return k.r.Read(p)
}

// maxLongPoll is the longest that one request waits for something to happen.
const maxLongPoll = time.Minute

func (s processes) logs(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.LogOptions{
		ExecID: q.str("exec_id"), Stream: api.Stream(q.str("stream")),
		Tail:  int(q.integer("tail", 0, 0, 1<<31-1)),
		Since: q.number("since"), SinceTime: q.time("since_time"), Follow: q.boolean("follow"),
		WaitMS: q.integer("wait_ms", 0, 0, maxLongPoll.Milliseconds()),
	}
	if o.Stream != "" && o.Stream != api.Stdout && o.Stream != api.Stderr {
		q.fail("stream", "there are no logs of stream %q", clip(string(o.Stream), 40)).WithHint("want stdout or stderr")
	}
	if err := q.end(); err != nil {
		return err
	}
	return s.lines(w, r, o.Follow, func(ctx context.Context, lines *lineWriter) error {
		return s.core.Logs(ctx, r.caller, r.ref(), o, func(e api.LogEntry) error { return lines.write(e) })
	})
}

func (s processes) createContext(w http.ResponseWriter, r request) error {
	var spec api.CodeContextSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &spec); err != nil {
		return err
	}
	c, err := s.core.CreateContext(r.Context(), r.caller, r.ref(), spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, c)
	return nil
}

func (s processes) contexts(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Contexts(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	l.Contexts = nonNil(l.Contexts)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s processes) restartContext(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.core.RestartContext(r.Context(), r.caller, r.ref(), r.PathValue("context")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s processes) removeContext(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.core.RemoveContext(context.WithoutCancel(r.Context()), r.caller, r.ref(), r.PathValue("context")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// runCode answers with the events of a run, a line each. A caller that leaves interrupts the run.
func (s processes) runCode(w http.ResponseWriter, r request) error {
	var req api.CodeRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	return s.lines(w, r, true, func(ctx context.Context, lines *lineWriter) error {
		return s.core.RunCode(ctx, r.caller, r.ref(), req, func(e api.CodeEvent) error { return lines.write(e) })
	})
}
