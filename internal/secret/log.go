package secret

import (
	"context"
	"fmt"
	"log/slog"
)

// Logger is a logger whose lines have no value in them that this Store has read.
func (s *Store) Logger() *slog.Logger { return s.log }

// redacting is a slog.Handler that takes values out of texts.
type redacting struct {
	slog.Handler
	redact func(string) string
}

// Handle implements slog.Handler.
func (h redacting) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.redact(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

// WithAttrs implements slog.Handler.
func (h redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = h.attr(a)
	}
	return redacting{h.Handler.WithAttrs(out), h.redact}
}

// WithGroup implements slog.Handler.
func (h redacting) WithGroup(name string) slog.Handler {
	return redacting{h.Handler.WithGroup(name), h.redact}
}

// attr is a without values. What has none in its text stays what it is.
func (h redacting) attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(h.redact(v.String()))
	case slog.KindGroup:
		group := v.Group()
		out := make([]slog.Attr, len(group))
		for i, one := range group {
			out[i] = h.attr(one)
		}
		a.Value = slog.GroupValue(out...)
	case slog.KindAny:
		text := fmt.Sprint(v.Any())
		if clean := h.redact(text); clean != text {
			a.Value = slog.StringValue(clean)
		}
	}
	return a
}
