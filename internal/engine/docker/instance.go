package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/agentline"
)

// How long to wait before a daemon that did not answer is asked again.
const (
	firstPatience = 100 * time.Millisecond
	mostPatience  = 5 * time.Second
)

// instance is one container.
type instance struct {
	e     *Engine
	d     *daemon
	rec   record
	state []byte
	line  *agentline.Line
	guard *watcher // nil without DieWithParent, and after a recovery

	statting sync.Mutex
	groups   *groups // nil until they are found

	done chan struct{}
	end  engine.Ending // set before done is closed

	// gone is closed when Close has removed the container: the watch asks no more.
	gone    chan struct{}
	closing sync.Mutex
	closed  bool
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
	_ engine.Pauser   = (*instance)(nil)
	_ engine.Mortal   = (*instance)(nil)
)

// instance makes an instance of a container that runs, and watches it.
func (e *Engine) instance(d *daemon, rec record, guard *watcher) (*instance, error) {
	state, err := json.Marshal(rec)
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "encode the state of sandbox %s: %w", rec.ID, err)
	}
	i := &instance{e: e, d: d, rec: rec, state: state, guard: guard, done: make(chan struct{}), gone: make(chan struct{})}
	i.line = &agentline.Line{Open: i.openLine}
	e.wg.Go(i.watch)
	return i, nil
}

// watch waits for the end. A daemon that does not answer says nothing about a
// container: it is asked again.
func (i *instance) watch() {
	ctx, cancel := context.WithCancel(i.e.life)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with watch
		select {
		case <-i.gone:
			cancel()
		case <-stop:
		}
	}()
	for patience := firstPatience; ; patience = min(2*patience, mostPatience) {
		err := i.await(ctx)
		if err == nil {
			close(i.done)
			return
		}
		select {
		case <-i.gone:
			close(i.done)
			return
		case <-ctx.Done():
			if i.e.life.Err() != nil {
				return
			}
		case <-time.After(patience):
		}
	}
}

// await returns nil when the container has ended or is no more.
func (i *instance) await(ctx context.Context) error {
	wait := i.d.ContainerWait(ctx, i.rec.Container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case answer := <-wait.Result:
		if answer.Error == nil {
			i.end = ending(answer.StatusCode)
			return nil
		}
	case err := <-wait.Error:
		if errdefs.IsNotFound(err) {
			i.end = engine.Ending{How: "its container was removed"}
			return nil
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	running, _, err := i.look(ctx)
	if err == nil && running {
		err = errors.New("the daemon does not say when it ends")
	}
	return err
}

// ending tells what the status of a first process means.
func ending(status int64) engine.Ending {
	if name := api.SignalName(int(status - 128)); status > 128 && name != "" {
		return engine.Ending{How: "its agent was killed by signal " + name}
	}
	return engine.Ending{How: "its agent ended"}
}

// look asks whether the container runs, and whether it is paused. One that is no
// more does not run.
func (i *instance) look(ctx context.Context) (running, paused bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := i.d.inspect(ctx, i.rec.Container)
	if errdefs.IsNotFound(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	s := answer.Container.State
	return s != nil && (s.Running || s.Paused), s != nil && s.Paused, nil
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Ending implements engine.Mortal.
func (i *instance) Ending() engine.Ending {
	<-i.done
	return i.end
}

func (i *instance) dead() bool {
	select {
	case <-i.done:
		return true
	case <-i.gone:
		return true
	default:
		return false
	}
}

func (i *instance) lost(what string, cause error) error {
	return api.Errorf(api.CodeSandboxLost, "%s: it is dead", what).WithCause(cause)
}

// Dial implements engine.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if i.dead() {
		return nil, i.lost("dial sandbox "+i.rec.ID, nil)
	}
	running, paused, err := i.look(ctx)
	switch {
	case err != nil:
		return nil, i.e.classify(ctx, "dial sandbox "+i.rec.ID, err)
	case !running:
		return nil, i.lost("dial sandbox "+i.rec.ID, nil)
	case paused:
		return nil, api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.rec.ID).WithHint("resume it")
	}
	conn, err := i.line.Dial(ctx)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() == nil {
		if running, _, lerr := i.look(ctx); lerr == nil && !running {
			return nil, i.lost("dial sandbox "+i.rec.ID, err)
		}
		if errors.Is(err, agentline.ErrRefused) || broken(err) || errdefs.IsConflict(err) {
			out := api.Errorf(api.CodeUnavailable, "dial sandbox %s: the agent does not listen", i.rec.ID).WithCause(err)
			out.Retryable = true
			return nil, out
		}
	}
	return nil, i.e.classify(ctx, "dial sandbox "+i.rec.ID, err)
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.closing.Lock()
	defer i.closing.Unlock()
	i.line.Close()
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	err := i.d.remove(ctx, i.rec.Container)
	if err == nil && i.rec.Volumes {
		err = i.d.dropVolumes(ctx, i.rec.Owner, func(id string) bool { return id == i.rec.ID })
	}
	if err != nil {
		out := i.e.classify(ctx, "close sandbox "+i.rec.ID, err)
		if e, ok := errors.AsType[*api.Error](out); ok {
			e.Retryable = true
		}
		return out
	}
	close(i.gone)
	select {
	case <-i.done:
	case <-i.e.life.Done(): // the watch is over
	}
	if i.guard != nil {
		i.guard.release()
	}
	i.closed = true
	return nil
}

func past() time.Time { return time.Unix(1, 0) }
