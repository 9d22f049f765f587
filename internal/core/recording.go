package core

import (
	"context"
	"io"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Recordings lists the caller's recordings, by name.
func (s *Service) Recordings(_ context.Context, caller Caller) (api.RecordingList, error) {
	list, err := s.opts.Recordings.List(caller.Tenant)
	return api.RecordingList{Recordings: list}, s.classed("list recordings", err)
}

// GetRecording tells of one of the caller's.
func (s *Service) GetRecording(_ context.Context, caller Caller, name string) (api.RecordingInfo, error) {
	info, err := s.opts.Recordings.Info(caller.Tenant, name)
	return info, s.classed("look at a recording", err)
}

// ReadRecording writes one to w, as far as it has been made. Nothing was written where
// the error is a *api.Error.
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

// PutRecording keeps one that was made elsewhere.
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

// RemoveRecording takes one away. Who replays it goes on.
func (s *Service) RemoveRecording(ctx context.Context, caller Caller, name string) error {
	const verb = policy.VerbRemoveRecording
	d := details{"recording": bound(name)}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	err := s.opts.Recordings.Remove(caller.Tenant, name)
	return s.done(context.WithoutCancel(ctx), caller, verb, "", d, s.classed("remove a recording", err))
}

// classed gives an error of Cloche's a code; one that has one keeps it.
func (s *Service) classed(what string, err error) error {
	if err == nil {
		return nil
	}
	return s.broken(what, err)
}
