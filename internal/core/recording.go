package core

import (
	"context"
	"io"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Recordings returns the caller's recordings, sorted by name.
func (s *Service) Recordings(_ context.Context, caller Caller) (api.RecordingList, error) {
	list, err := s.opts.Recordings.List(caller.Tenant)
	return api.RecordingList{Recordings: list}, s.classed("list recordings", err)
}

// GetRecording returns the record of one of the caller's recordings.
func (s *Service) GetRecording(_ context.Context, caller Caller, name string) (api.RecordingInfo, error) {
	info, err := s.opts.Recordings.Info(caller.Tenant, name)
	return info, s.classed("look at a recording", err)
}

// ReadRecording writes a recording to w, up to its present end. If the error is a *api.Error,
// nothing was written.
func (s *Service) ReadRecording(ctx context.Context, caller Caller, name string, w io.Writer) error {
	const verb = policy.VerbGetRecording
	d := details{"recording": bound(name)}
	f, err := s.opts.Recordings.Read(caller.Tenant, name)
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, s.classed("read a recording", err))
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return s.broken("read a recording", err)
	}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(f, 0, fi.Size()))
	return err
}

// PutRecording stores an uploaded recording.
func (s *Service) PutRecording(ctx context.Context, caller Caller, name string, r io.Reader) (api.RecordingInfo, error) {
	const verb = policy.VerbPutRecording
	d := details{"recording": bound(name)}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return api.RecordingInfo{}, err
	}
	info, err := s.opts.Recordings.Put(caller.Tenant, name, r)
	if err == nil {
		d["bytes"] = strconv.FormatInt(info.Bytes, 10)
	}
	return info, s.done(context.WithoutCancel(ctx), caller, verb, "", d, s.classed("keep a recording", err))
}

// RemoveRecording removes a recording. Endpoints that replay it continue.
func (s *Service) RemoveRecording(ctx context.Context, caller Caller, name string) error {
	const verb = policy.VerbRemoveRecording
	d := details{"recording": bound(name)}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	err := s.opts.Recordings.Remove(caller.Tenant, name)
	return s.done(context.WithoutCancel(ctx), caller, verb, "", d, s.classed("remove a recording", err))
}

// classed adds a code to an error that has none.
func (s *Service) classed(what string, err error) error {
	if err == nil {
		return nil
	}
	return s.broken(what, err)
}
