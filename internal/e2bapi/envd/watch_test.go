//go:build linux

package envd_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd/envdpb"
)

func TestWatchDir(t *testing.T) {
	f := newFixture(t)
	client := envdpb.NewFilesystemClient(&http.Client{Transport: withToken{}}, f.url, connect.WithProtoJSON())
	s, err := client.WatchDir(t.Context(), connect.NewRequest(&envdpb.WatchDirRequest{Path: ".", Recursive: true, IncludeEntry: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("the first message is %v: %v", s.Msg(), s.Err())
	}
	go func() {
		for _, c := range []envd.FileChange{
			{Kind: envd.FileCreate, Name: "d"},
			// A file is written beside its name and then moved there.
			{Kind: envd.FileCreate, Name: "d/.cloche-0123456789abcdef"},
			{Kind: envd.FileWrite, Name: "d/.cloche-0123456789abcdef"},
			{Kind: envd.FileRename, Name: "d/.cloche-0123456789abcdef"},
			{Kind: envd.FileCreate, Name: "d/f", Entry: &api.FileInfo{Name: "f", Type: api.TypeFile, Size: 3, Mode: 0o644}},
			{Kind: envd.FileChmod, Name: "d/f"},
			{Kind: envd.FileRename, Name: "d/f"},
			{Kind: envd.FileCreate, Name: "g"},
			{Kind: envd.FileRemove, Name: "g"},
		} {
			f.changes <- c
		}
		close(f.changes)
	}()
	var got []string
	for s.Receive() {
		ev := s.Msg().GetFilesystem()
		got = append(got, strings.TrimPrefix(ev.GetType().String(), "EVENT_TYPE_")+" "+ev.GetName())
		if e := ev.GetEntry(); e != nil && (e.GetPath() != f.dir+"/d/f" || e.GetSize() != 3) {
			t.Errorf("the entry is %v", e)
		}
	}
	if want := "CREATE d, CREATE d/f, WRITE d/f, CHMOD d/f, RENAME d/f, CREATE g, REMOVE g"; strings.Join(got, ", ") != want || s.Err() != nil {
		t.Errorf("got %v, %v, want %s", got, s.Err(), want)
	}
}

func TestWatchOverflows(t *testing.T) {
	f := newFixture(t)
	go func() { f.changes <- envd.FileChange{Kind: envd.FileOverflow} }()
	got := f.stream(t, "filesystem.Filesystem/WatchDir", `{"path":"."}`, nil)
	if len(got) != 2 || !strings.Contains(got[1].body, `"data_loss"`) {
		t.Errorf("frames %v", got)
	}
}

func TestWatchers(t *testing.T) {
	f := newFixture(t)
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
	f.changes <- envd.FileChange{Kind: envd.FileWrite, Name: "a"}
	f.changes <- envd.FileChange{Kind: envd.FileRemove, Name: "a"}
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
