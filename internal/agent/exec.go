package agent

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// markerRoom is more than the line between head and tail can take.
	markerRoom = 256
	// maxChunks bounds Result.Chunks.
	maxChunks = 1 << 14
)

// Start is a program to run.
type Start struct {
	// ExecID names the process; it must be unique in the sandbox.
	ExecID string
	// Argv is executed as it is; a name without slash is searched in Env's PATH.
	Argv []string
	// Env is the environment, each K=V. HOME, USER and LOGNAME are added where it
	// has none.
	Env []string
	// Cwd is absolute; empty is "/".
	Cwd string
	// User is "name", "uid" or "uid:gid"; empty is Config.User.
	User string
	// Stdin is the whole input of a collected exec. A streamed one has Write.
	Stdin []byte
	// Timeout kills the whole tree after that long; 0 is never.
	Timeout time.Duration
	// MaxOutput bytes of each stream are kept, half at each end; 0 is
	// api.DefaultMaxOutput. A streamed exec ignores it.
	MaxOutput int64
	// Combined gives the program one pipe for both streams.
	Combined bool
	// TTY gives it a terminal of Rows × Cols; only with Stream.
	TTY        bool
	Rows, Cols uint16
	// Repeatable makes Exec answer a second call with the same id and the same
	// request with the result of the first, which it waits for, as long as that is
	// kept: of the last 64, and 16 MiB of output together. A different request, or
	// one whose result is gone, is api.CodeExists. An agent of an older cloche
	// answers every second call so.
	Repeatable bool
	// Brief: a repetition is possible only after a call that failed with [ErrSaving], and within ten seconds of its result.
	Brief bool
}

func (s Start) wire() *wire.Exec {
	timeout := s.Timeout.Milliseconds()
	if s.Timeout > 0 && timeout == 0 {
		timeout = 1
	}
	return &wire.Exec{
		ID: s.ExecID, Argv: toBytes(s.Argv), Env: toBytes(s.Env), Cwd: api.Bytes(s.Cwd), User: s.User,
		TimeoutMS: timeout, MaxOutput: s.MaxOutput, Combined: s.Combined,
		TTY: s.TTY, Rows: s.Rows, Cols: s.Cols,
	}
}

func toBytes(ss []string) []api.Bytes {
	bs := make([]api.Bytes, len(ss))
	for i, s := range ss {
		bs[i] = api.Bytes(s)
	}
	return bs
}

// Exec runs a program and returns what it wrote and how it ended. The end of ctx
// ends the call, not the process.
func (c *Client) Exec(ctx context.Context, s Start) (api.Result, error) {
	if s.MaxOutput <= 0 {
		s.MaxOutput = api.DefaultMaxOutput
	}
	s.MaxOutput = min(s.MaxOutput, api.MaxMaxOutput)
	x := s.wire()
	x.Input = len(s.Stdin) > 0
	x.Brief = s.Brief
	req := wire.Request{Op: wire.OpExec, Exec: x}
	if s.Repeatable {
		var err error
		if x.Key, err = key(req, s.Stdin); err != nil {
			return api.Result{}, err
		}
	}
	k, err := c.open(ctx, req)
	if err != nil {
		return api.Result{}, err
	}
	var feeder sync.WaitGroup
	defer feeder.Wait()
	defer k.end() // ends the feeder too
	if x.Input {
		feeder.Go(func() {
			// A program that does not read its input is no failure; a lost
			// connection is seen by the reader.
			if k.Bytes(wire.KindInput, s.Stdin) == nil {
				_ = k.End()
			}
		})
	}
	return collect(k, s)
}

func collect(k *call, s Start) (api.Result, error) {
	var stdout, stderr []byte
	for {
		kind, payload, err := k.next()
		if err != nil {
			return api.Result{}, err
		}
		var kept *[]byte
		switch kind {
		case wire.KindStdout:
			kept = &stdout
		case wire.KindStderr:
			kept = &stderr
		case wire.KindExit:
			res, err := wire.Decode[api.Result](payload)
			if err != nil {
				return api.Result{}, classify(err)
			}
			res.Stdout, res.Stderr = stdout, stderr
			return sane(res, s.ExecID), nil
		default:
			return api.Result{}, unexpected(kind)
		}
		if int64(len(*kept)+len(payload)) > s.MaxOutput+markerRoom {
			return api.Result{}, classify(errTooMuch)
		}
		*kept = append(*kept, payload...)
	}
}

// sane keeps of a result what an agent may say.
func sane(r api.Result, execID string) api.Result {
	out := api.Result{
		TimedOut: r.TimedOut, OOM: r.OOM, Reason: bounded(r.Reason),
		Stdout: r.Stdout, Stderr: r.Stderr, Truncated: r.Truncated,
		StdoutInfo: saneCounts(r.StdoutInfo), StderrInfo: saneCounts(r.StderrInfo),
		DurationMS: min(max(r.DurationMS, 0), math.MaxInt64/int64(time.Millisecond)), ExecID: execID,
	}
	if r.ExitCode != nil && *r.ExitCode >= 0 && *r.ExitCode <= 255 {
		out.ExitCode = r.ExitCode
	}
	out.Signal = saneSignal(r.Signal)
	room := map[api.Stream]int64{api.Stdout: int64(len(r.Stdout)), api.Stderr: int64(len(r.Stderr))}
	for _, c := range r.Chunks {
		if c.Len <= 0 || c.Len > room[c.Stream] || len(out.Chunks) == maxChunks {
			break
		}
		room[c.Stream] -= c.Len
		out.Chunks = append(out.Chunks, c)
	}
	return out
}

func saneCounts(c api.StreamCounts) api.StreamCounts {
	return api.StreamCounts{Kept: max(c.Kept, 0), Dropped: max(c.Dropped, 0)}
}

// saneSignal lets pass the names of signals, and "RT" with a number.
func saneSignal(s string) string {
	if len(s) > 16 {
		return ""
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '+' {
			return ""
		}
	}
	return s
}
