//go:build linux

package envd_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

func TestWatchDir(t *testing.T) {
	f := newFixture(t)
	f.put(t, "d/before", "")
	client := envdpb.NewFilesystemClient(&http.Client{Transport: withToken{}}, f.url, connect.WithProtoJSON())
	s, err := client.WatchDir(t.Context(), connect.NewRequest(&envdpb.WatchDirRequest{Path: ".", Recursive: true, IncludeEntry: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("the first message is %v: %v", s.Msg(), s.Err())
	}
	f.put(t, "d/f", "abc") // the agent writes it beside its name and then moves it there
	for _, err := range []error{os.Chmod(f.dir+"/d/f", 0o600), os.Rename(f.dir+"/d/f", f.dir+"/g"), os.Remove(f.dir + "/g"), os.RemoveAll(f.dir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for s.Receive() {
		ev := s.Msg().GetFilesystem()
		got = append(got, strings.TrimPrefix(ev.GetType().String(), "EVENT_TYPE_")+" "+ev.GetName())
	}
	all := strings.Join(got, ", ")
	for _, want := range []string{"CREATE d/f, WRITE d/f", "RENAME d/f, CREATE g, REMOVE g"} {
		if !strings.Contains(all, want) {
			t.Errorf("got %s, want %s", all, want)
		}
	}
	if s.Err() != nil || strings.Contains(all, ".cloche-") {
		t.Errorf("got %s, %v", all, s.Err())
	}
}

func TestWatchOverflows(t *testing.T) {
	f := newFixture(t)
	f.changes = make(chan api.FileChange)
	go func() { f.changes <- api.FileChange{Kind: api.FileOverflow} }()
	got := f.stream(t, "filesystem.Filesystem/WatchDir", `{"path":"."}`, nil)
	if len(got) != 2 || !strings.Contains(got[1].body, `"data_loss"`) {
		t.Errorf("frames %v", got)
	}
}

func TestWatchers(t *testing.T) {
	f := newFixture(t)
	f.changes = make(chan api.FileChange)
	f.put(t, "file", "")
	for _, c := range []struct{ path, code string }{{"nope", "not_found"}, {"file", "invalid_argument"}} {
		if _, got := f.unary(t, "filesystem.Filesystem/CreateWatcher", `{"path":"`+c.path+`"}`); got["code"] != c.code {
			t.Errorf("%s: %v", c.path, got)
		}
		if got := f.stream(t, "filesystem.Filesystem/WatchDir", `{"path":"`+c.path+`"}`, nil); !strings.Contains(got[0].body, `"`+c.code+`"`) {
			t.Errorf("%s: %v", c.path, got)
		}
	}
	status, got := f.unary(t, "filesystem.Filesystem/CreateWatcher", `{"path":"."}`)
	id, _ := got["watcherId"].(string)
	if status != 200 || !strings.HasPrefix(id, "w") {
		t.Fatalf("%d %v", status, got)
	}
	f.changes <- api.FileChange{Kind: api.FileWrite, Name: "a"}
	f.changes <- api.FileChange{Kind: api.FileRemove, Name: "a"}
	var events []any
	for until := time.Now().Add(10 * time.Second); len(events) < 2 && time.Now().Before(until); {
		_, got := f.unary(t, "filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"`+id+`"}`)
		more, _ := got["events"].([]any)
		events = append(events, more...)
	}
	if len(events) != 2 {
		t.Errorf("events %v", events)
	}
	for i, want := range []int{200, 404} {
		if status, got := f.unary(t, "filesystem.Filesystem/RemoveWatcher", `{"watcherId":"`+id+`"}`); status != want {
			t.Errorf("removed %d times before: %d %v", i, status, got)
		}
	}
	if status, got := f.unary(t, "filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"`+id+`"}`); status != 404 || got["code"] != "not_found" {
		t.Errorf("a watcher that was removed: %d %v", status, got)
	}
	for range 64 {
		if status, got = f.unary(t, "filesystem.Filesystem/CreateWatcher", `{"path":"."}`); status != 200 {
			t.Fatal(got)
		}
	}
	if status, got := f.unary(t, "filesystem.Filesystem/CreateWatcher", `{"path":"."}`); status != 429 || got["code"] != "resource_exhausted" {
		t.Errorf("too many watchers: %d %v", status, got)
	}
}
