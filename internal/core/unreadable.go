package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

// TellUnreadable reports, in the log and as events, which records cannot be read. What they
// describe is kept. Call it once, when the daemon starts.
func (s *Service) TellUnreadable(context.Context) {
	all := func(string) bool { return true }
	workspaces, err := s.opts.Workspaces.List(all)
	if err != nil {
		s.log.Error("look for workspaces without a record", "error", err)
	}
	for _, w := range workspaces {
		if w.State != "" {
			s.tellUnreadable(w.Tenant, "workspace "+w.Name+": "+w.Reason)
		}
	}
	snapshots, err := s.opts.Snapshots.List(all)
	if err != nil {
		s.log.Error("look for snapshots without a record", "error", err)
	}
	for _, snap := range snapshots {
		if snapshot.IsDamaged(snap) {
			s.tellUnreadable(snap.Tenant, "snapshot "+snap.ID+": its record cannot be read; it is kept until it is removed")
		}
	}
	for _, file := range s.opts.Images.Unreadable() {
		s.tellUnreadable("", "image: its record "+file+" cannot be read; its files are kept")
	}
	if s.opts.Jobs != nil {
		for _, file := range s.opts.Jobs.Unreadable {
			s.tellUnreadable("", "job: its record "+file+" cannot be read; its directory is kept")
		}
	}
}

func (s *Service) tellUnreadable(tenant, reason string) {
	s.log.Error("a record cannot be read", "what", reason)
	if s.opts.Events != nil {
		s.opts.Events.Publish(api.Event{Kind: api.EventRecord, Tenant: tenant, Reason: reason})
	}
}
