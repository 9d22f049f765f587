package sandbox

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
)

// A sandbox without a record that can be read is listed as failed, with what is known of
// it, and with a time at which it was created: retention and the order of a list use it.
func TestUnreadableSandbox(t *testing.T) {
	begun := now()
	created, changed := begun.Add(-2*time.Hour), begun.Add(-time.Hour)
	m := &Manager{opts: Options{Owner: "owner"}}
	m.assign()
	for name, c := range map[string]struct {
		err                       error
		described, gone           bool
		wantName, wantTenant, why string
		created                   time.Time
	}{
		"described":             {errors.New("torn"), true, false, "dev", "a", "cannot be read", created},
		"without a description": {fs.ErrNotExist, false, false, "sb-x", "", "is missing", changed},
		"without its directory": {fs.ErrNotExist, false, true, "sb-x", "", "is missing", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "sb-x")
			if !c.gone {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if c.described {
				data, err := json.Marshal(record.Identity{Version: record.Version, KeyDigest: "d", Info: api.Sandbox{ID: "sb-x", Name: "dev", Tenant: "a", Profile: "p", CreatedAt: created}})
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, directory.Identity), data, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if !c.gone {
				if err := os.Chtimes(dir, changed, changed); err != nil {
					t.Fatal(err)
				}
			}
			s := m.recovery.unreadableSandbox("sb-x", dir, c.err)
			info := s.snapshot()
			if info.ID != "sb-x" || info.Name != c.wantName || info.Tenant != c.wantTenant || info.State != api.StateFailed {
				t.Errorf("%+v", info)
			}
			if want := "owners/owner/sandboxes/sb-x/sandbox.json " + c.why; !strings.Contains(info.Reason, want) {
				t.Errorf("reason %q, want %q in it", info.Reason, want)
			}
			if c.gone && info.CreatedAt.Before(begun) || !c.gone && !info.CreatedAt.Equal(c.created) {
				t.Errorf("created at %s, want %s", info.CreatedAt, c.created)
			}
			if s.tenant != c.wantTenant || s.name != c.wantName || c.described != (s.digest == "d") || c.described != (s.profile == "p") {
				t.Errorf("found as %q of %q, with key %q and profile %q", s.name, s.tenant, s.digest, s.profile)
			}
		})
	}
}
