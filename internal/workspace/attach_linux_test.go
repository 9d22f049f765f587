package workspace_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func store(t *testing.T) (*workspace.Store, string) {
	t.Helper()
	home := tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	return s, home
}

func wish(name string) workspace.Wish { return workspace.Wish{Tenant: "local", Name: name} }

func writer(id string) workspace.Holder { return workspace.Holder{Owner: "d-1", Sandbox: id} }

func reader(id string) workspace.Holder {
	return workspace.Holder{Owner: "d-1", Sandbox: id, ReadOnly: true}
}

// code compares the code of an error, and wants a hint with one.
func code(t *testing.T, what string, err error, want api.Code) {
	t.Helper()
	if api.CodeOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
	if e, ok := errors.AsType[*api.Error](err); ok && e.Hint == "" {
		t.Errorf("%s: no hint: %v", what, err)
	}
}

func TestNamedOneWriterOrManyReaders(t *testing.T) {
	s, _ := store(t)
	try := func(h workspace.Holder) error {
		_, err := s.Attach(wish("w"), h)
		return err
	}
	must(t, try(writer("a")))
	must(t, try(writer("a"))) // again: a create that was retried
	err := try(writer("b"))
	code(t, "a second writer", err, api.CodeConflict)
	if !strings.Contains(err.Error(), "sandbox a ") {
		t.Errorf("it does not say who has it: %v", err)
	}
	code(t, "a reader beside a writer", try(reader("b")), api.CodeConflict)
	code(t, "a removal", s.Remove("local", "w"), api.CodeConflict)
	must(t, s.Detach("local", "w", "d-2", "a", false)) // not that owner's
	code(t, "after a foreign detach", try(writer("b")), api.CodeConflict)
	must(t, s.Detach("local", "w", "d-1", "a", false))
	must(t, try(reader("b")))
	must(t, try(reader("c")))
	code(t, "a writer beside readers", try(writer("d")), api.CodeConflict)
	info, err := s.Get("local", "w")
	must(t, err)
	if fmt.Sprint(info.Sandboxes) != "[b c]" || info.UsedAt == nil || info.UsedBytes != nil || info.Enforced != "" {
		t.Errorf("on record: %+v", info)
	}
	must(t, s.Detach("local", "w", "d-1", "b", false))
	must(t, s.Detach("local", "w", "d-1", "c", true))
	_, err = s.Get("local", "w")
	code(t, "after its drop", err, api.CodeNotFound)
	must(t, s.Detach("local", "w", "d-1", "c", true))
}

func TestNamedOfADeadOwnerIsFree(t *testing.T) {
	s, _ := store(t)
	s.Alive = func(owner string) bool { return owner != "r-dead" }
	_, err := s.Attach(wish("w"), workspace.Holder{Owner: "r-dead", Sandbox: "a"})
	must(t, err)
	_, err = s.Attach(wish("w"), writer("b"))
	must(t, err)
	must(t, s.Detach("local", "w", "d-1", "b", false))
	_, err = s.Attach(wish("w"), workspace.Holder{Owner: "r-dead", Sandbox: "a"})
	must(t, err)
	must(t, s.Remove("local", "w"))
}

func TestNamedSweep(t *testing.T) {
	s, home := store(t)
	for _, id := range []string{"kept", "gone", "other"} {
		h := writer(id)
		if id == "other" {
			h.Owner = "d-2"
		}
		_, err := s.Attach(wish(id), h)
		must(t, err)
	}
	own := filepath.Join(home, "workspaces", "local", ".cloche")
	must(t, os.MkdirAll(filepath.Join(own, "trash-1", "deep"), 0o700))
	for _, left := range []string{"x.json.new", "ws-orphan.ext4", "ws-half.ext4.new"} {
		must(t, os.WriteFile(filepath.Join(own, left), []byte("{"), 0o600))
	}
	// A removal that was killed after its intention was written.
	_, err := s.Create(wish("half"))
	must(t, err)
	record := filepath.Join(own, "half.json")
	data, err := os.ReadFile(record)
	must(t, err)
	must(t, os.WriteFile(record, []byte(strings.Replace(string(data), `"Version":1`, `"Version":1,"Removing":true`, 1)), 0o600))
	_, err = s.Get("local", "half")
	code(t, "one that is being removed", err, api.CodeNotFound)

	must(t, s.Sweep("d-1", func(id string) bool { return id == "kept" }))
	for name, want := range map[string]string{"kept": "[kept]", "gone": "[]", "other": "[other]"} {
		if info, err := s.Get("local", name); err != nil || fmt.Sprint(info.Sandboxes) != want {
			t.Errorf("%s: %v, %v; want %s", name, info.Sandboxes, err, want)
		}
	}
	entries, err := os.ReadDir(own)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "gone.json kept.json lock other.json trash.lock ws-orphan.ext4" {
		t.Errorf("left: %s", got)
	}
	if _, err := os.Stat(filepath.Join(home, "workspaces", "local", "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files of what was being removed: %v", err)
	}
}

func TestNamedCreateListRemove(t *testing.T) {
	s, home := store(t)
	w := wish("b")
	w.Labels = map[string]string{"team": "x"}
	w.Max = 3
	info, err := s.Create(w)
	must(t, err)
	if info.Tenant != "local" || info.Labels["team"] != "x" || info.CreatedAt.IsZero() || info.UsedAt != nil {
		t.Errorf("made %+v", info)
	}
	_, err = s.Create(w)
	code(t, "the same again", err, api.CodeExists)
	// What an earlier build left.
	must(t, os.MkdirAll(filepath.Join(home, "workspaces", "local", "a", "kept"), 0o700))
	must(t, os.Mkdir(filepath.Join(home, "workspaces", "local", "c"), 0o700))
	w.Name = "d"
	_, err = s.Create(w)
	code(t, "over the maximum", err, api.CodeTooMany)
	other := wish("b")
	other.Tenant = "uid-7"
	_, err = s.Create(other)
	must(t, err)

	list := func(sees func(string) bool) string {
		l, err := s.List(sees)
		must(t, err)
		var out []string
		for _, i := range l {
			out = append(out, i.Tenant+"/"+i.Name)
		}
		return strings.Join(out, " ")
	}
	if got := list(func(string) bool { return true }); got != "local/a local/b uid-7/b local/c" {
		t.Errorf("all: %s", got)
	}
	if got := list(func(t string) bool { return t == "uid-7" }); got != "uid-7/b" {
		t.Errorf("one tenant's: %s", got)
	}
	_, err = s.Attach(wish("a"), writer("x"))
	must(t, err)
	d, err := s.Open("local", "a", "")
	must(t, err)
	defer d.Close()
	if _, err := os.Stat(filepath.Join(d.Path(), "kept")); err != nil {
		t.Errorf("what an earlier build left: %v", err)
	}
	must(t, s.Detach("local", "a", "d-1", "x", false))
	must(t, s.Remove("local", "a"))
	code(t, "removed twice", s.Remove("local", "a"), api.CodeNotFound)
	if _, err := os.Stat(d.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its files: %v", err)
	}
}

// Many ask at once, also from stores of several processes.
func TestNamedAtOnce(t *testing.T) {
	_, home := store(t)
	var wg sync.WaitGroup
	var got atomic.Int64
	for i := range 16 {
		wg.Go(func() {
			s, err := workspace.Open(home)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = s.Attach(wish("w"), writer(fmt.Sprint(i)))
			switch {
			case err == nil:
				got.Add(1)
			case !errors.Is(err, api.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d sandboxes write at once", got.Load())
	}
}

func TestNamedRefusesForeignRecords(t *testing.T) {
	s, home := store(t)
	_, err := s.Create(wish("w"))
	must(t, err)
	record := filepath.Join(home, "workspaces", "local", ".cloche", "w.json")
	for _, text := range []string{"", "{", `{"Version":2,"Name":"w","Tenant":"local"}`, `{"Version":1,"Name":"v","Tenant":"local"}`, `{"Version":1,"Name":"w","Tenant":"other"}`} {
		must(t, os.WriteFile(record, []byte(text), 0o600))
		if _, err := s.Attach(wish("w"), writer("a")); err == nil {
			t.Errorf("record %q was taken", text)
		}
		list, err := s.List(func(string) bool { return true })
		if err != nil || len(list) != 1 || list[0].State != api.WorkspaceFailed {
			t.Errorf("record %q in a list: %+v, %v; want it as failed", text, list, err)
		}
	}
}
