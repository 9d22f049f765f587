package policy

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of a managed process.
const (
	maxProcessName = 128
	maxReadyLog    = 1024
	maxReadyPath   = 1024
	maxRestarts    = 1 << 20
	maxBackoff     = time.Hour
	maxReadyWait   = 24 * time.Hour
	minReadyPause  = 10 * time.Millisecond
)

// ProcessPermit is a granted start of a managed process. Only DecideProcess returns a valid one. It
// is immutable and safe for concurrent use.
type ProcessPermit struct {
	ExecPermit
	spec api.ProcessSpec
}

// Spec returns what was granted for restart, readiness, input and output, with defaults filled in.
// The program is in the ExecPermit.
func (p ProcessPermit) Spec() api.ProcessSpec {
	s := p.spec
	if s.Restart != nil {
		s.Restart = new(*s.Restart)
	}
	if s.Ready != nil {
		s.Ready = new(*s.Ready)
	}
	return s
}

// DecideProcess grants the start of one managed process in a sandbox with these settings, or
// returns why not. The error is always a *api.Error. The sandbox's timeout applies only to execs: a
// managed process has a timeout only if the request sets one.
func DecideProcess(spec api.ProcessSpec, in Settings, caller Caller, set rules.Rules) (ProcessPermit, error) {
	if err := NoOutputChars(spec.ExecRequest); err != nil {
		return ProcessPermit{}, err
	}
	if spec.CancelWithCaller {
		return ProcessPermit{}, api.Invalid("cancel_with_caller", "a managed process outlives the call that starts it").
			WithHint("leave cancel_with_caller out, or run the program as an exec")
	}
	asked := spec.TimeoutMS
	exec, err := DecideExec(spec.ExecRequest, in, caller, set)
	if err != nil {
		return ProcessPermit{}, err
	}
	if asked == nil {
		exec.timeout, exec.req.TimeoutMS = 0, nil
	}
	out := ProcessPermit{ExecPermit: exec, spec: spec}
	out.spec.ExecRequest = exec.req
	out.spec = out.Spec() // a copy, so that the caller's spec is unchanged
	for _, check := range []func(*api.ProcessSpec) *api.Error{processName, processOutput, processRestart, processReady} {
		if err := check(&out.spec); err != nil {
			return ProcessPermit{}, err
		}
	}
	return out, nil
}

func processName(s *api.ProcessSpec) *api.Error {
	if len(s.Name) > maxProcessName || strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return api.Invalid("name", "the name %s cannot be shown", rules.Quote(s.Name)).
			WithHint("at most %d bytes without control characters", maxProcessName)
	}
	return nil
}

func processOutput(s *api.ProcessSpec) *api.Error {
	if s.RestoreSignal != "" && api.SignalNumber(s.RestoreSignal) == 0 {
		return api.Invalid("restore_signal", "there is no signal %s", rules.Quote(s.RestoreSignal)).WithHint("such as USR1")
	}
	if s.OnFull = cmp.Or(s.OnFull, api.OnFullDrop); s.OnFull != api.OnFullDrop && s.OnFull != api.OnFullBlock {
		return api.Invalid("on_full", "there is no way %s to go on when the output is full", rules.Quote(string(s.OnFull))).WithHint("drop or block")
	}
	return nil
}

func processRestart(s *api.ProcessSpec) *api.Error {
	if s.Restart == nil {
		s.Restart = &api.Restart{Policy: api.RestartNever}
		return nil
	}
	r := s.Restart
	switch r.Policy {
	case api.RestartNever, api.RestartOnFailure, api.RestartAlways:
	default:
		return api.Invalid("restart.policy", "there is no restart policy %s", rules.Quote(string(r.Policy))).WithHint("never, on-failure or always")
	}
	if r.MaxRestarts < 0 || r.MaxRestarts > maxRestarts {
		return api.Invalid("restart.max_restarts", "%d restarts were asked for", r.MaxRestarts).WithHint("0 (no bound) to %d", maxRestarts)
	}
	for _, b := range []struct {
		field string
		ms    *int64
		usual int64
	}{{"restart.backoff_ms", &r.BackoffMS, 500}, {"restart.max_backoff_ms", &r.MaxBackoffMS, 30_000}} {
		if *b.ms < 0 || *b.ms > maxBackoff.Milliseconds() {
			return api.Invalid(b.field, "a back-off of %d ms was asked for", *b.ms).WithHint("0 (%d) to %d", b.usual, maxBackoff.Milliseconds())
		}
		if *b.ms == 0 {
			*b.ms = b.usual
		}
	}
	r.MaxBackoffMS = max(r.MaxBackoffMS, r.BackoffMS)
	return nil
}

func processReady(s *api.ProcessSpec) *api.Error {
	r := s.Ready
	if r == nil {
		return nil
	}
	given := 0
	if r.Port != 0 {
		given++
		if err := validPort("ready.port", r.Port); err != nil {
			return err
		}
	}
	if r.Log != "" {
		given++
		if len(r.Log) > maxReadyLog {
			return rules.TooLarge("ready.log", "the expression has %d bytes", len(r.Log)).WithHint("at most %d", maxReadyLog)
		}
		if _, err := regexp.Compile(r.Log); err != nil {
			return api.Invalid("ready.log", "%s is no regular expression: %w", rules.Quote(r.Log), err).
				WithHint("write one in RE2's syntax, such as `listening on .*`, or escape what is meant as it stands")
		}
	}
	if h := r.HTTP; h != nil {
		given++
		if err := validPort("ready.http.port", h.Port); err != nil {
			return err
		}
		if len(h.Path) > maxReadyPath || strings.ContainsFunc(h.Path, func(c rune) bool { return c <= ' ' || c >= 0x7f }) ||
			h.Path != "" && h.Path[0] != '/' {
			return api.Invalid("ready.http.path", "%s is no path of a request", rules.Quote(h.Path)).WithHint("such as /health, percent-encoded")
		}
	}
	if given != 1 {
		return api.Invalid("ready", "%d ways to see readiness are given", given).WithHint("set exactly one of port, log and http")
	}
	if r.TimeoutMS < 0 || r.TimeoutMS > maxReadyWait.Milliseconds() {
		return api.Invalid("ready.timeout_ms", "%d ms were asked for", r.TimeoutMS).WithHint("0 (%d) to %d", api.DefaultReadyTimeoutMS, maxReadyWait.Milliseconds())
	}
	if r.TimeoutMS == 0 {
		r.TimeoutMS = api.DefaultReadyTimeoutMS
	}
	if r.IntervalMS < 0 || r.IntervalMS > maxReadyWait.Milliseconds() {
		return api.Invalid("ready.interval_ms", "%d ms were asked for", r.IntervalMS).WithHint("0 (200) or more")
	}
	if r.IntervalMS == 0 {
		r.IntervalMS = 200
	}
	r.IntervalMS = max(r.IntervalMS, minReadyPause.Milliseconds())
	return nil
}

func validPort(field string, port int) *api.Error {
	if port < 1 || port > 65535 {
		return api.Invalid(field, "%d is no port", port).WithHint("1 to 65535")
	}
	return nil
}
