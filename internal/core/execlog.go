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

// What the daemon's log shows of an exec, in characters. The audit log has more of
// the command and nothing of the output.
const (
	loggedCommand = 400
	loggedStream  = 200
	// lookedAt is how many bytes of a stream are searched for secrets before it is cut.
	lookedAt = 16 << 10
)

// logExec writes what was run and what came of it to the daemon's log, for whoever
// asked for as much: names of variables and none of their values, and of command and
// output the beginning, without what is known to be secret.
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

// command is a command line as the audit log would show it.
func (s *Service) command(argv []string) string {
	return audit.ExecDetails(api.ExecRequest{Argv: argv}, audit.Disclosure{Argv: audit.ArgvRedacted, Redactor: s.opts.Redactor})["argv"]
}

// clean is the first of an output, without values that are known to be secret.
func (s *Service) clean(output api.Bytes) string {
	return s.redact(string(output[:min(len(output), lookedAt)]))
}

// redact takes the values of secrets that are known out of a text.
func (s *Service) redact(text string) string {
	if s.opts.Redactor == nil {
		return text
	}
	return s.opts.Redactor.Redact(text)
}

// beginning is the first characters of a text, with a mark where it goes on.
func beginning(text string, characters int) string {
	for i := range text {
		if characters == 0 {
			return text[:i] + "…"
		}
		characters--
	}
	return text
}
