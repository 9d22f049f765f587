//go:build linux

package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/trust"
	"github.com/cloche-dev/cloche/internal/snapshot"
)

func wantClass(t *testing.T, what string, err error, code api.Code, retryable bool, says string) *api.Error {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != code || e.Retryable != retryable || !strings.Contains(e.Error(), says) {
		t.Errorf("%s: %v, want %s, retryable %v, %q", what, err, code, retryable, says)
		return &api.Error{}
	}
	return e
}

// What goes wrong in a step of a create has a code, and keeps one that it has.
func TestClassesOfACreate(t *testing.T) {
	had := api.Errorf(api.CodeDenied, "had")
	if err := fault.Classify("x", had); !errors.Is(err, had) {
		t.Errorf("an error with a code: %v", err)
	}
	e := wantClass(t, "full", fault.Classify("files", syscall.ENOSPC), api.CodeNoCapacity, true, "at step files: the disk is full")
	if e.Hint == "" {
		t.Error("no hint")
	}
	other := errors.New("other")
	if err := fault.Classify("files", other); wantClass(t, "other", err, api.CodeInternal, false, "failed at step files") == nil || !errors.Is(err, other) {
		t.Errorf("its cause is lost: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(idempotency.ErrDeleted)
	e = wantClass(t, "forestalled", fault.Canceled(ctx, createTimeout, "x", ctx.Err()), api.CodeConflict, false, "was deleted while")
	if e.TerminalReason != api.EndedDeleted {
		t.Errorf("its reason is %q", e.TerminalReason)
	}
	wantClass(t, "late", fault.Canceled(t.Context(), createTimeout, "x", context.DeadlineExceeded), api.CodeTimeout, false, "took longer than 2m0s, at step x")
	wantClass(t, "left", fault.Canceled(t.Context(), createTimeout, "x", context.Canceled), api.CodeCanceled, false, "canceled at step x")
}

// What goes wrong with files of the host has a code, and says what could not be done.
func TestClassesOfFiles(t *testing.T) {
	s := &live{name: "box", info: api.Sandbox{Name: "box", State: api.StateRunning, Workspace: api.Workspace{SizeBytes: 77, Enforced: api.HeldByKernel}}, ended: make(chan struct{})}
	had := api.Errorf(api.CodeDenied, "had")
	if err := diskError(s, "copied", had); !errors.Is(err, had) {
		t.Errorf("an error with a code: %v", err)
	}
	e := wantClass(t, "no room", diskError(s, "copied", fault.NoRoom(s.info.Workspace, syscall.EDQUOT)), api.CodeNoCapacity, false, "do not fit into its workspace")
	if e.Field != "workspace.size_bytes" || !strings.Contains(e.Hint, "more than 77 bytes") {
		t.Errorf("field %q, hint %q", e.Field, e.Hint)
	}
	e = wantClass(t, "full", diskError(s, "copied", syscall.ENOSPC), api.CodeNoCapacity, true, "could not be copied: the disk is full")
	if e.Hint == "" || e.Field != "" {
		t.Errorf("field %q, hint %q", e.Field, e.Hint)
	}
	wantClass(t, "left", diskError(s, "copied", context.Canceled), api.CodeCanceled, false, "were not copied: it was canceled")
	wantClass(t, "late", diskError(s, "copied", context.DeadlineExceeded), api.CodeTimeout, false, "were not copied in time")
	e = wantClass(t, "other", diskError(s, "copied", errors.New("x")), api.CodeInternal, false, "could not be copied")
	if e.Hint == "" {
		t.Error("no hint")
	}
	// A workspace that the kernel does not bound is not what is full, and neither is another error.
	if err := fault.NoRoom(api.Workspace{Enforced: api.HeldByWatch}, syscall.ENOSPC); errors.Is(err, fault.ErrNoRoom) {
		t.Errorf("a workspace without a bound: %v", err)
	}
	if err := fault.NoRoom(s.info.Workspace, syscall.EIO); errors.Is(err, fault.ErrNoRoom) || !errors.Is(err, syscall.EIO) {
		t.Errorf("another error: %v", err)
	}
}

// A snapshot has what it can, says what it leaves out and why, and refuses what was
// asked for alone and is not available.
func TestScopesOfSnapshots(t *testing.T) {
	const files, root, ws = api.SnapshotFiles, api.SnapshotRoot, api.SnapshotWorkspace
	private := api.Workspace{Path: "/w"}
	host := api.Workspace{Path: "/w", Dir: "/home"}
	volume := api.Workspace{Path: "/w", Volume: true}
	for what, c := range map[string]struct {
		asked    api.SnapshotScope
		state    api.State
		ws       api.Workspace
		readOnly bool
		want     api.SnapshotScope
		left     string
		refused  string
	}{
		"all":                  {"", api.StateRunning, private, false, files, "", ""},
		"paused":               {files, api.StatePaused, private, false, files, "", ""},
		"root":                 {root, api.StateRunning, private, false, root, "", ""},
		"workspace":            {ws, api.StateStopped, private, false, ws, "", ""},
		"stopped":              {"", api.StateStopped, private, false, ws, "/ it can be read only", ""},
		"lost":                 {"", api.StateLost, private, false, ws, "/ it can be read only", ""},
		"read-only":            {"", api.StateRunning, private, true, ws, "/ nothing was changed", ""},
		"files of a stopped":   {files, api.StateStopped, private, false, "", "", "its root can be read only while it runs"},
		"root of a stopped":    {root, api.StateStopped, private, false, "", "", "can be read only while it runs"},
		"root of a read-only":  {root, api.StateRunning, private, true, "", "", "is read-only: nothing was changed"},
		"host":                 {"", api.StateRunning, host, false, root, "/w a directory of the host", ""},
		"volume":               {files, api.StateRunning, volume, false, root, "/w a volume of the engine's", ""},
		"workspace of a host":  {ws, api.StateRunning, host, false, "", "", "is a directory of the host, which is in no snapshot"},
		"host, stopped":        {"", api.StateStopped, host, false, "", "", "can be read only while it runs"},
		"creating":             {"", api.StateCreating, private, false, "", "", "is creating"},
		"stopping":             {ws, api.StateStopping, private, false, "", "", "is stopping"},
		"workspace, read-only": {ws, api.StateRunning, private, true, ws, "", ""},
	} {
		info := api.Sandbox{Name: "box", State: c.state, Workspace: c.ws, ReadOnlyRoot: c.readOnly, Mounts: []api.Mount{{Target: "/m"}}}
		got, left, err := snapshot.ScopeOf(info, c.asked)
		if c.refused != "" {
			wantClass(t, what, err, api.CodeState, false, c.refused)
			continue
		}
		if err != nil || got != c.want || len(left) == 0 || left[0].Path != "/m" || left[0].Reason != "a directory of the host" {
			t.Errorf("%s: %s, left %v, %v", what, got, left, err)
			continue
		}
		switch {
		case c.left == "" && len(left) == 1:
		case c.left != "" && len(left) == 2 && strings.HasPrefix(left[1].Path+" "+left[1].Reason, c.left):
		default:
			t.Errorf("%s: left out are %v", what, left)
		}
	}
}

// What is to be done with a layer is done when its sandbox has ended.
func TestStatesInWhichALayerIsSettled(t *testing.T) {
	for state, may := range map[api.State]bool{
		api.StateStopped: true, api.StateLost: true, api.StateRunning: false, api.StatePaused: false, api.StateStopping: false, api.StateCreating: false,
	} {
		s := &live{info: api.Sandbox{Name: "box", State: state, Workspace: api.Workspace{Layered: true}}}
		if err := s.mayOpenLayer(); (err == nil) != may {
			t.Errorf("%s: %v", state, err)
		} else if !may {
			wantClass(t, string(state), err, api.CodeState, false, "is settled when it has ended")
		}
		s.info.Workspace.Layered = false
		// Refused before anything of it is released.
		wantClass(t, string(state)+" without a layer", s.mayOpenLayer(), api.CodeState, false, "is not layered")
		for _, leave := range []func(){func() { s.teardown = stage.TeardownRemoved }, func() { s.teardown = stage.TeardownRemoving }} {
			leave()
			if err := s.mayOpenLayer(); !errors.Is(err, api.ErrNotFound) {
				t.Errorf("%s that is removed: %v", state, err)
			}
		}
	}
}

// A program gets its secrets, each as it is to have it, and the certificates.
func TestWhatProgramsAreGiven(t *testing.T) {
	var asked []string
	m := &Manager{opts: Options{Secrets: func(ctx context.Context, name string) (string, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("a secret may be waited for without end")
		}
		asked = append(asked, name)
		if name == "gone" {
			return "", api.Errorf(api.CodeNotFound, "gone")
		}
		return "value of " + name, nil
	}}}
	hosts := []rule.Host{}
	s := &live{secrets: []record.Secret{
		{Name: "plain", Env: "PLAIN", Mode: api.SecretEnv},
		{Name: "hidden", Env: "HIDDEN", Mode: api.SecretPlaceholder, Placeholder: "standin", Hosts: hosts, Headers: []string{"h"}, Query: true},
	}}
	env, err := m.given(t.Context(), s)
	if want := map[string]string{"PLAIN": "value of plain", "HIDDEN": "standin"}; err != nil || !maps.Equal(env, want) {
		t.Errorf("%v, %v", env, err)
	}
	if !slices.Equal(asked, []string{"plain"}) {
		t.Errorf("asked for are %q", asked)
	}
	got := trust.Placeholders(s.secrets)
	if len(got) != 1 || got[0].Name != "hidden" || got[0].Placeholder != "standin" || !got[0].Query || !slices.Equal(got[0].Headers, []string{"h"}) {
		t.Errorf("placeholders are %+v", got)
	}
	s.trusts, s.image.Env = true, map[string]string{"JAVA_TOOL_OPTIONS": "-Xmx1g"}
	env, err = m.given(t.Context(), s)
	if err != nil || env["HIDDEN"] != "standin" || env["SSL_CERT_FILE"] != "/.cloche-trust/bundle.pem" || env["NODE_EXTRA_CA_CERTS"] != "/.cloche-trust/own.pem" ||
		!strings.HasPrefix(env["JAVA_TOOL_OPTIONS"], "-Xmx1g -Djavax.net.ssl.trustStore="+"/.cloche-trust/java.jks") || !strings.HasSuffix(env["JAVA_TOOL_OPTIONS"], intercept.JavaPassword) {
		t.Errorf("%v, %v", env, err)
	}
	if env := trust.Env(nil); strings.HasPrefix(env["JAVA_TOOL_OPTIONS"], " ") {
		t.Errorf("options begin with a space: %q", env["JAVA_TOOL_OPTIONS"])
	}
	s.secrets = append(s.secrets, record.Secret{Name: "gone", Env: "GONE", Mode: api.SecretEnv})
	if _, err := m.given(t.Context(), s); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a secret that is gone: %v", err)
	}
	m.opts.Secrets = nil
	if _, err := m.given(t.Context(), s); !errors.Is(err, api.ErrUnsupported) {
		t.Errorf("without secrets here: %v", err)
	}
	if env, err := m.given(t.Context(), &live{}); err != nil || len(env) != 0 {
		t.Errorf("nothing is given as %v, %v", env, err)
	}
}

// An image says as whom its processes run, and where, as far as that means anything.
func TestWhatAnImageSaysOfProcesses(t *testing.T) {
	for dir, want := range map[string]string{"/work": "/work", "/work/../x/": "/x", "": "", "work": "", "/": "", "//": ""} {
		if got := (image.Rootfs{Config: &api.ImageConfig{WorkingDir: dir}}).WorkingDir(); got != want {
			t.Errorf("%q: %q", dir, got)
		}
	}
	if got := (image.Rootfs{}).WorkingDir(); got != "" {
		t.Errorf("without a configuration: %q", got)
	}
}

// refusing is an instance that tells of refusals.
type refusing struct {
	engine.Instance
	list []engine.PathDenial
	err  error
}

func (r refusing) Refusals(_ context.Context, fn func(engine.PathDenial)) error {
	for _, one := range r.list {
		fn(one)
	}
	return r.err
}

// A refusal is told with its rule, where that is one of the sandbox's, and what was
// missed with its number.
func TestRefusalsAreTold(t *testing.T) {
	var got []pathrule.Denial
	m := &Manager{log: slog.New(slog.DiscardHandler), ctx: t.Context(), opts: Options{
		Refused: func(sb api.Sandbox, r pathrule.Denial) {
			if sb.Name != "box" {
				t.Errorf("told of %q", sb.Name)
			}
			got = append(got, r)
		},
	}}
	m.assign()
	s := &live{info: api.Sandbox{Name: "box", Workspace: api.Workspace{Path: "/w", Rules: []api.PathRule{{Path: "b", Access: api.AccessRead}}},
		Mounts: []api.Mount{{Target: "/m", Rules: []api.PathRule{{Path: "a", Access: api.AccessNone}}}}}}
	rules := pathrule.Of(s.info)
	if len(rules) != 2 || rules[0].Name != "mounts[0].rules[0]" || string(rules[0].Target) != "/m" || !rules[0].Make || rules[1].Name != "workspace.rules[0]" {
		t.Fatalf("rules are %+v", rules)
	}
	m.refused.hear(s, refusing{list: []engine.PathDenial{
		{Rule: 0, Op: "open", Path: "a/x", Program: "cat", UID: 7}, {Rule: 1, Missed: 3}, {Rule: -1, Missed: 5, Path: "x"}, {Rule: 2, Path: "x"},
	}}, rules)
	want := []pathrule.Denial{
		{Rule: "mounts[0].rules[0]", Access: api.AccessNone, Mount: "/m", Path: "a/x", Op: "open", Program: "cat", UID: 7},
		{Rule: "workspace.rules[0]", Access: api.AccessRead, Mount: "/w", Missed: 3}, {Missed: 5}, {},
	}
	if !slices.Equal(got, want) {
		t.Errorf("told are\n%+v\nwant\n%+v", got, want)
	}
	got = nil
	m.refused.untold(s, errors.Join(errors.New("x"), engine.Untold(4)))
	m.refused.untold(s, errors.New("x"))
	if !slices.Equal(got, []pathrule.Denial{{Missed: 4}}) {
		t.Errorf("told are %+v", got)
	}
	m.opts.Refused = nil
	m.refused.untold(s, engine.Untold(4)) // there is no one to tell
}
