package audit

import (
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// failing is what this process knows of records that could not be written.
type failing struct {
	now bool
	// missed are those that the head's file does not count yet, because it could not
	// be written either.
	missed int64
	since  time.Time
	reason string
	err    error // the last
}

// isFull reports whether err is a full disk, quota or file.
func isFull(err error) bool {
	return hostfile.IsFull(err)
}

// missed counts a record that could not be written, where a later process finds
// the count, and raises the alarm with the first one.
func (l *Log) missed(err error, locked bool) {
	now := time.Now().UTC()
	if l.failed.missed == 0 {
		l.failed.since = now
	}
	l.failed.missed++
	l.failed.err = err
	l.failed.reason = "they could not be written"
	if isFull(err) {
		l.failed.reason = "there was no space"
	}
	if locked && l.known != nil {
		// The head's file has its space already.
		if l.anchor.Missed == 0 {
			l.anchor.Since = l.failed.since
		}
		l.anchor.Missed += l.failed.missed
		at, segment := l.at.head, l.at.segment
		l.at.head.Seq, l.at.head.Hash, l.at.segment = l.anchor.Seq, l.anchor.Hash, l.anchor.Segment
		l.putAnchor()
		l.at.head, l.at.segment = at, segment
		if l.known != nil {
			l.failed.missed = 0
		}
	}
	if l.failed.now {
		return
	}
	l.failed.now = true
	does := "operations that need a record are refused until there is space"
	if l.opts.Degrade && isFull(err) {
		does = "requests are served without a record until there is space, and counted"
	}
	l.opts.Logger.Error("the audit log cannot be written: "+does, "error", err)
	l.alarm(api.EventAuditFailing, "the audit log cannot be written: "+does)
}

// gap is the record of how many are missing, when some are.
func (l *Log) gap(now time.Time) *api.AuditFact {
	n := l.anchor.Missed + l.failed.missed
	if n == 0 {
		return nil
	}
	since := l.anchor.Since
	if since.IsZero() {
		since = l.failed.since
	}
	until := now.UTC()
	reason := l.failed.reason
	if reason == "" {
		reason = "an earlier process could not write them"
	}
	return &api.AuditFact{Kind: api.AuditGap, Count: n, Since: &since, Until: &until, Reason: reason}
}

// Failing says that records cannot be written, and whether what needs one is refused for
// that. It tries again first, so that it does not tell of what is over.
func (l *Log) Failing() (failing, refuses bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failed.now || l.closed {
		return l.closed, l.closed
	}
	err := l.retry()
	if err == nil {
		l.recovered()
		return false, false
	}
	return true, !l.opts.Degrade || !isFull(err)
}

// retry writes what the log has to say of itself, such as the count of what is missing.
// l.mu is held.
func (l *Log) retry() error {
	// A note of the log's own is small and may fit where a record does not.
	const enough = 16 << 10
	if isFull(l.failed.err) && hostfile.FreeBytes(l.dir) < enough {
		return l.failed.err
	}
	unlock, err := l.locked()
	if err != nil {
		return err
	}
	defer unlock()
	facts, err := l.find()
	if err != nil {
		return err
	}
	return l.write(facts, nil)
}

// recovered ends an alarm.
func (l *Log) recovered() {
	if !l.failed.now {
		return
	}
	l.failed = failing{}
	l.opts.Logger.Warn("the audit log can be written again", "seq", l.at.head.Seq)
	l.alarm(api.EventAuditRecovered, "the audit log can be written again; the count of what is missing is in it")
}

func (l *Log) alarm(kind api.EventKind, reason string) {
	if l.opts.Alarm != nil {
		l.opts.Alarm(api.Event{Kind: kind, Reason: reason})
	}
}
