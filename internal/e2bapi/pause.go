package e2bapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

const (
	// pauseEvery is how often the sandboxes that are paused at their end are looked at.
	pauseEvery = time.Second
	// pauseAgain is when a pause that failed is tried again.
	pauseAgain = 10 * time.Second
)

// keepTimes are for how long a sandbox that can be paused is kept, in seconds: the longest that its profile
// allows.
var keepTimes = [...]int64{maxTimeout, 7 * 24 * 3600, 24 * 3600, 6 * 3600, 3600}

// keep extends the lifetime of a sandbox that is paused or will be. Core's lifetime continues during a
// pause. Without longer than seconds, the profile does not allow it.
func (s *Server) keep(ctx context.Context, caller core.Caller, ref string, seconds int64) (err error) {
	for _, t := range keepTimes {
		if t <= seconds {
			break
		}
		if _, err = s.core.Extend(ctx, caller, ref, api.Extension{LifetimeMS: t * 1000}); err == nil || api.CodeOf(err) == api.CodeNotFound {
			return err
		}
	}
	if err == nil {
		err = fail(http.StatusBadRequest, "the timeout is longer than a paused sandbox is kept")
	}
	return err
}

// pause pauses a sandbox, and keeps it for as long as the profile allows. Without its memory, it is stopped, and is kept
// for as long as core keeps stopped sandboxes.
func (s *Server) pause(w http.ResponseWriter, r request) error {
	var req struct {
		Memory *bool `json:"memory"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	kept, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	if kept.paused(sb) {
		return fail(http.StatusConflict, "sandbox %q is paused already", clip(r.PathValue("id")))
	}
	if err := s.pauseNow(r, sb.ID, req.Memory != nil && !*req.Memory); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) pauseNow(r request, ref string, cold bool) error {
	ctx := context.WithoutCancel(r.Context()) // what was begun is finished
	if err := s.hold(ctx, r.caller, ref, cold); err != nil {
		return err
	}
	s.cut(ref)
	if _, err := s.records.update(ref, func(next *record) { next.Paused = time.Now().UTC().Truncate(time.Millisecond) }); err != nil {
		return err
	}
	if cold {
		return nil // core keeps it
	}
	if err := s.keep(ctx, r.caller, ref, 0); err != nil {
		s.log.Info("a paused sandbox keeps its end, because its profile allows no more", "sandbox", ref, "error", err)
	}
	return nil
}

// hold pauses a sandbox, with its memory or without it. What the record says of that is there before a sandbox is stopped,
// which is gone otherwise.
func (s *Server) hold(ctx context.Context, caller core.Caller, ref string, cold bool) error {
	if !cold {
		return s.suspend(ctx, caller, ref)
	}
	if _, err := s.records.update(ref, func(next *record) { next.Cold = true }); err != nil {
		return err
	}
	_, err := s.core.Stop(ctx, caller, ref, nil) // what fails is tried again by core
	return err
}

// wake has a paused sandbox run. One that was paused without its memory gets the start command of its template again, once
// for calls that come at the same time.
func (s *Server) wake(ctx context.Context, caller core.Caller, ref string) error {
	_, err, _ := s.resuming.Do("wake "+ref, func() (any, error) {
		sb, err := s.core.Get(ctx, caller, ref)
		switch {
		case err != nil:
			return nil, err
		case !sb.State.Over():
			_, err = s.core.Resume(ctx, caller, ref)
			return nil, err
		}
		sb, err = s.core.StartSandbox(ctx, caller, ref, nil)
		if err != nil || sb.Image == "" || sb.Image == api.DefaultImage {
			return nil, err
		}
		im, err := s.core.InspectImage(ctx, caller, sb.Image)
		if err != nil || !isTemplate(im) {
			return nil, err
		}
		return nil, s.startTemplate(ctx, caller, ref, im)
	})
	return err
}

// suspend suspends a sandbox to the disk, or pauses it in memory where its engine cannot save that.
func (s *Server) suspend(ctx context.Context, caller core.Caller, ref string) error {
	_, err := s.core.Suspend(ctx, caller, ref)
	if errors.Is(err, api.ErrUnsupported) {
		_, err = s.core.Pause(ctx, caller, ref)
	}
	return err
}

// resume resumes a sandbox for a time in seconds.
func (s *Server) resume(ctx context.Context, caller core.Caller, kept *record, seconds int64) (*record, error) {
	ctx = context.WithoutCancel(ctx) // what was begun is finished
	ref := kept.Sandbox
	if err := s.wake(ctx, caller, ref); err != nil {
		return nil, err
	}
	next, err := s.records.update(ref, func(next *record) {
		next.Paused, next.Cold, next.Started = time.Time{}, false, time.Now().UTC()
		next.setEnd(seconds)
	})
	if err != nil {
		return nil, err
	}
	if next.AutoPause {
		return next, nil // core's own end is later
	}
	_, err = s.core.Extend(ctx, caller, ref, api.Extension{LifetimeMS: seconds * 1000, Exact: true})
	return next, err
}

// setEnd sets the end of a sandbox that is paused at its end, in seconds from now.
func (r *record) setEnd(seconds int64) {
	if r.AutoPause {
		r.Timeout, r.End = seconds, time.Now().UTC().Add(time.Duration(seconds)*time.Second).Truncate(time.Millisecond)
	}
}

// resumeByTraffic resumes a paused sandbox for a request of its data plane, if it was created so. Requests
// that come at the same time resume it once.
func (s *Server) resumeByTraffic(ctx context.Context, caller core.Caller, kept *record) error {
	_, err, _ := s.resuming.Do(kept.Sandbox, func() (any, error) {
		sb, err := s.core.Get(ctx, caller, kept.Sandbox)
		if err != nil || !kept.paused(sb) {
			return nil, err // another request has resumed it
		}
		timeout := kept.Timeout
		if timeout <= 0 {
			timeout = timeoutV2
		}
		_, err = s.resume(ctx, caller, kept, timeout)
		return nil, err
	})
	return err
}

// pauseDue pauses the sandboxes whose time is over and that are paused then.
func (s *Server) pauseDue() {
	now := time.Now()
	for _, kept := range s.records.all() {
		if !kept.AutoPause || !kept.Paused.IsZero() || kept.End.IsZero() || kept.End.After(now) {
			continue
		}
		if err := s.pauseOne(kept, now); err != nil && s.ctx.Err() == nil {
			s.log.Warn("pause a sandbox of E2B at its end; it is tried again", "sandbox", kept.Sandbox, "error", err)
			_, _ = s.records.update(kept.Sandbox, func(next *record) { next.End = now.Add(pauseAgain) }) // it is logged above
		}
	}
}

func (s *Server) pauseOne(kept *record, now time.Time) error {
	ref := kept.Sandbox
	// The sandbox is paused as the daemon's own user: its key may have been revoked.
	sb, err := s.core.Get(s.ctx, s.user(), ref)
	switch {
	case api.CodeOf(err) == api.CodeNotFound || err == nil && sb.State.Over():
		return nil // the sweep removes the record
	case err != nil:
		return err
	case sb.State == api.StateRunning:
		if err := s.hold(s.ctx, s.user(), ref, kept.ColdPause); err != nil {
			return err
		}
		s.cut(ref)
	}
	extended := false
	_, err = s.records.update(ref, func(next *record) {
		if extended = next.End.After(now); !extended {
			next.Paused = now.UTC().Truncate(time.Millisecond)
		}
	})
	if err == nil && extended {
		err = s.wake(s.ctx, s.user(), ref)
	}
	return err
}
