package core

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Limits of what the daemon's log shows of an exec, in characters. The audit log has more of the
// command and none of the output.
const (
	loggedCommand = 400
	loggedStream  = 200
	// lookedAt is how many bytes of a stream are searched for secrets before it is truncated.
	lookedAt = 16 << 10
)

// logExec writes an exec and its result to the daemon's log at the debug level: names of variables
// without values, and the beginning of the command and the output, without known secrets.
func (s *Service) logExec(ctx context.Context, sb api.Sandbox, permit policy.ExecPermit, res api.Result, err error) {
	if !s.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("sandbox", sb.ID), slog.String("exec", res.ExecID),
		slog.String("command", beginning(s.command(permit.Argv()), loggedCommand)),
		slog.Any("env", slices.Sorted(maps.Keys(permit.Env()))),
	}
	switch {
	case err != nil:
		attrs = append(attrs, slog.Any("error", err))
	case res.ExitCode != nil:
		attrs = append(attrs, slog.Int("exit_code", *res.ExitCode))
	default:
		attrs = append(attrs, slog.String("signal", res.Signal), slog.String("reason", res.Reason))
	}
	for _, out := range []struct {
		name string
		text api.Bytes
	}{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		if len(out.text) > 0 {
			attrs = append(attrs, slog.String(out.name, beginning(s.clean(out.text), loggedStream)))
		}
	}
	s.log.LogAttrs(ctx, slog.LevelDebug, "exec", attrs...)
}

// command returns a command line as the audit log shows it.
func (s *Service) command(argv []string) string {
	return audit.ExecDetails(api.ExecRequest{Argv: argv}, audit.Disclosure{Argv: audit.ArgvRedacted, Redactor: s.opts.Redactor})["argv"]
}

// clean returns the beginning of an output, without known secret values.
func (s *Service) clean(output api.Bytes) string {
	return s.redact(string(output[:min(len(output), lookedAt)]))
}

// redact removes known secret values from a text.
func (s *Service) redact(text string) string {
	if s.opts.Redactor == nil {
		return text
	}
	return s.opts.Redactor.Redact(text)
}

// beginning returns the first characters of a text, with a mark if it continues.
func beginning(text string, characters int) string {
	for i := range text {
		if characters == 0 {
			return text[:i] + "…"
		}
		characters--
	}
	return text
}
