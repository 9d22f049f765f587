package rulefile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// LookEvery is how often a Follower looks at the file.
const LookEvery = time.Second

// Follower keeps the rules in force the same as the file. Rules that are no good,
// and a file that is gone, leave the old ones in force: a slip must neither stop
// the daemon nor open it.
type Follower struct {
	File File
	// Began is what was loaded at the start.
	Began Loaded
	// Use puts rules into force. While it fails it is tried again.
	Use func(ctx context.Context, rules rules.Rules, digest string) error
	// Reject records rules that are not used, and why; digest is empty where there
	// was nothing to read.
	Reject func(ctx context.Context, digest string, why error)
	// Restored is called when the file has the rules in force again after a
	// rejection; nil is nothing.
	Restored func()
	Logger   *slog.Logger

	inForce  string
	rejected string
}

// Run follows the file until ctx ends. A change is taken when the file has looked
// the same twice, so that one that is being written is not read half; a signal asks
// to read it at once.
func (f *Follower) Run(ctx context.Context, now <-chan os.Signal) {
	f.inForce = f.Began.Digest
	t := time.NewTicker(LookEvery)
	defer t.Stop()
	// What it looked like when it was loaded is not known: the first look reads.
	var taken, before stamp
	known := false
	for {
		forced := false
		select {
		case <-ctx.Done():
			return
		case <-now:
			forced = true
		case <-t.C:
		}
		is := f.File.stamp()
		settled := is.same(before)
		before = is
		if !forced && (!settled || known && is.same(taken)) {
			continue
		}
		if f.load(ctx, forced) {
			taken, known = is, true
		}
	}
}

// load takes what the file says now, and reports whether that is settled. An asked
// one tells again what is wrong.
func (f *Follower) load(ctx context.Context, asked bool) bool {
	got, err := f.File.Load()
	if err == nil && got.Digest == "" && f.inForce != "" {
		err = api.Errorf(api.CodeInvalid, "the policy file is gone, and the rules that it had stay in force").
			WithHint("put it back, or an empty one to have no rules; without a file they end with the daemon")
	}
	if err == nil && got.Digest == f.inForce {
		if f.rejected != "" || asked {
			f.Logger.Info("the policy file says what is in force")
		}
		if f.rejected != "" && f.Restored != nil {
			f.Restored()
		}
		f.rejected = ""
		return true
	}
	if err == nil {
		if err := f.Use(ctx, got.Rules, got.Digest); err != nil {
			f.Logger.Error("use the changed policy; the old one stays in force, and it is tried again", "error", err)
			return false
		}
		f.inForce, f.rejected = got.Digest, ""
		f.Logger.Info("the policy is another", "sha256", got.Digest)
		return true
	}
	if why := got.Digest + " " + err.Error(); asked || why != f.rejected {
		f.rejected = why
		hint := ""
		if e, ok := errors.AsType[*api.Error](err); ok {
			hint = e.Hint
		}
		f.Logger.Error("the policy file is not used, and the old rules stay in force", "error", err, "hint", hint)
		f.Reject(ctx, got.Digest, err)
	}
	return true
}
