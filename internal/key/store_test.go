package key_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/key"
)

func open(t *testing.T, home string) *key.Store {
	t.Helper()
	s, err := key.Open(context.Background(), home)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s *key.Store, w key.Wish) (api.Key, string) {
	t.Helper()
	k, text, err := s.Create(w)
	if err != nil {
		t.Fatal(err)
	}
	return k, text
}

func closed(t *testing.T, s *key.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// refused wants a key to be good for nothing.
func refused(t *testing.T, s *key.Store, text, says string) {
	t.Helper()
	k, live, err := s.Verify(text)
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeUnauthenticated || e.Hint == "" || !strings.Contains(e.Message, says) || k.ID != "" || live != nil {
		t.Errorf("%+v, %v, %v; want a refusal that says %q", k, live, err, says)
	}
	if len(text) > 40 && strings.Contains(fmt.Sprintf("%+v", e), text[30:]) {
		t.Errorf("the refusal holds the key: %v", err)
	}
}

func TestAKeyIsKnownAgain(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	want := key.Wish{Tenant: "red", Name: "ci", Verbs: []string{"exec", "run"}, Profiles: []string{"agent"}, Life: time.Hour}
	k, text := create(t, s, want)
	if !regexp.MustCompile(`^clk_[0-9a-z]{16}_[0-9a-f]{64}$`).MatchString(text) || strings.Contains(text, "key-") {
		t.Errorf("the key has another form: %d characters", len(text))
	}
	for range 2 {
		got, live, err := s.Verify(text)
		if err != nil || live.Err() != nil {
			t.Fatalf("%v, %v", err, live)
		}
		if got.ID != k.ID || got.Tenant != "red" || got.Name != "ci" || fmt.Sprint(got.Verbs, got.Profiles) != "[exec run] [agent]" || !got.ExpiresAt.Equal(*k.ExpiresAt) {
			t.Errorf("found %+v, made %+v", got, k)
		}
		closed(t, s)
		s = open(t, home) // another daemon
	}
	if got, err := s.Get(k.ID); err != nil || got.LastUsedAt == nil {
		t.Errorf("the last use is not on record: %+v, %v", got, err)
	}
	closed(t, s)
	other, _ := create(t, s, key.Wish{Tenant: "red"})
	if l := s.List(); len(l) != 2 || l[0].ID != other.ID && l[1].ID != other.ID {
		t.Errorf("list %+v", l)
	}
}

func TestOtherTextIsNoKey(t *testing.T) {
	s := open(t, t.TempDir())
	_, text := create(t, s, key.Wish{Tenant: "red"})
	_, other := create(t, s, key.Wish{Tenant: "blue"})
	flipped := []byte(text)
	flipped[len(flipped)-1] ^= 1
	for _, wrong := range []string{
		"", "clk_", text[:len(text)-1], text + "0", strings.ToUpper(text), " " + text, string(flipped),
		text[:21] + other[21:], "clk_" + strings.Repeat("0", 16) + "_" + strings.Repeat("0", 64), strings.Repeat("x", 1<<16),
	} {
		refused(t, s, wrong, "no valid token")
	}
	closed(t, s)
}

// TestTheFileHasNoKey: the home's file does not reveal its keys.
func TestTheFileHasNoKey(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	_, text := create(t, s, key.Wish{Tenant: "red"})
	data, err := os.ReadFile(filepath.Join(home, "keys.json"))
	if err != nil || strings.Contains(string(data), text[21:]) || !strings.Contains(string(data), "red") {
		t.Errorf("%v: %s", err, data)
	}
	fi, err := os.Stat(filepath.Join(home, "keys.json"))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	closed(t, s)
}

func TestRevokeIsAtOnce(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	k, text := create(t, s, key.Wish{Tenant: "red", Life: time.Hour})
	_, live, err := s.Verify(text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Revoke(k.ID)
	if err != nil || got.RevokedAt == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	select {
	case <-live.Done():
	default:
		t.Error("what is under way goes on")
	}
	if err := context.Cause(live); api.CodeOf(err) != api.CodeUnauthenticated || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("its cause is %v", err)
	}
	refused(t, s, text, "revoked")
	again, err := s.Revoke(k.ID)
	if err != nil || !again.RevokedAt.Equal(*got.RevokedAt) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	// Not even a daemon that was killed knows it again.
	later := open(t, home)
	refused(t, later, text, "revoked")
	closed(t, s)
	if _, err := s.Revoke(text); api.CodeOf(err) != api.CodeNotFound || strings.Contains(err.Error(), text[21:]) {
		t.Errorf("by the key itself: %v", err)
	}
}

// TestRevokeHoldsWithoutADisk: a revocation that cannot be written is still in force.
func TestRevokeHoldsWithoutADisk(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, home)
	k, text := create(t, s, key.Wish{Tenant: "red"})
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revoke(k.ID); err == nil {
		t.Error("nobody is told")
	}
	refused(t, s, text, "revoked")
	if _, _, err := s.Create(key.Wish{Tenant: "red"}); err == nil || len(s.List()) != 1 {
		t.Errorf("a key that could not be written is there: %v", err)
	}
}

func TestAKeyExpires(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, home)
		k, text := create(t, s, key.Wish{Tenant: "red", Life: time.Hour})
		time.Sleep(59 * time.Minute)
		_, live, err := s.Verify(text)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := context.Cause(live); api.CodeOf(err) != api.CodeUnauthenticated || !strings.Contains(err.Error(), "expired") {
			t.Errorf("what is under way: %v", err)
		}
		refused(t, s, text, "expired")
		time.Sleep(29 * 24 * time.Hour)
		create(t, s, key.Wish{Tenant: "blue"})
		if _, err := s.Get(k.ID); err != nil {
			t.Errorf("forgotten too soon: %v", err)
		}
		time.Sleep(2 * 24 * time.Hour)
		create(t, s, key.Wish{Tenant: "blue"})
		if _, err := s.Get(k.ID); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("still on record: %v", err)
		}
		closed(t, s)
	})
}

// TestTheLastUseIsCheap: however often a key is used, its time is written once a
// minute.
func TestTheLastUseIsCheap(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, "keys.json")
	synctest.Test(t, func(t *testing.T) {
		s := open(t, home)
		_, text := create(t, s, key.Wish{Tenant: "red"})
		stat := func() os.FileInfo {
			synctest.Wait()
			fi, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			return fi
		}
		before, writes := stat(), 0
		for range 120 {
			time.Sleep(time.Second)
			for range 10 {
				if _, _, err := s.Verify(text); err != nil {
					t.Fatal(err)
				}
			}
			if now := stat(); !os.SameFile(now, before) {
				before, writes = now, writes+1
			}
		}
		if writes < 1 || writes > 2 {
			t.Errorf("written %d times in two minutes", writes)
		}
		closed(t, s)
	})
}

// When a store is closed nothing writes to the home any more, though a key was used at the
// last moment: another process may have it by then.
func TestCloseIsTheLastWrite(t *testing.T) {
	for range 50 {
		home := t.TempDir()
		file := filepath.Join(home, "keys.json")
		synctest.Test(t, func(t *testing.T) {
			s := open(t, home)
			_, text := create(t, s, key.Wish{Tenant: "red"})
			time.Sleep(2 * time.Minute)
			if _, _, err := s.Verify(text); err != nil {
				t.Fatal(err)
			}
			closed(t, s)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("the file was written after the end of the store: %v", err)
			}
			if _, _, err := s.Verify(text); err != nil {
				t.Errorf("a key is not known after the end: %v", err)
			}
		})
	}
}

// Reading and writing the file holds nothing open.
func TestNoDescriptorIsLeft(t *testing.T) {
	home := t.TempDir()
	count := func() (n int) {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc: it counts descriptors")
		}
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, home) {
				n++
			}
		}
		return n
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close unreferenced files
	s := open(t, home)
	k, _ := create(t, s, key.Wish{Tenant: "red"})
	if _, err := s.Revoke(k.ID); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	closed(t, open(t, home))
	if n := count(); n > 0 {
		t.Errorf("%d descriptors of the home are open", n)
	}
}

// A key that ended stays on record for its time, to the last of it, and no longer.
func TestDeadKeysAreKept(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, home)
		k, _ := create(t, s, key.Wish{Tenant: "red"})
		if _, err := s.Revoke(k.ID); err != nil {
			t.Fatal(err)
		}
		const kept = 30 * 24 * time.Hour
		time.Sleep(kept)
		create(t, s, key.Wish{Tenant: "red"})
		if got, err := s.Get(k.ID); err != nil || got.RevokedAt == nil {
			t.Errorf("after thirty days: %+v, %v", got, err)
		}
		time.Sleep(time.Millisecond)
		create(t, s, key.Wish{Tenant: "red"})
		if got, err := s.Get(k.ID); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("after more than thirty days: %+v, %v", got, err)
		}
		closed(t, s)
	})
}

func TestADamagedFileIsNotForgotten(t *testing.T) {
	good := `{"key":{"id":"key-1","tenant":"red"},"hash":"` + strings.Repeat("01", 32) + `"}`
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "keys.json"), []byte(`{"version":1,"keys":[`+good+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open(t, home); len(s.List()) != 1 {
		t.Errorf("of a file that is whole: %v", s.List())
	}
	for name, text := range map[string]string{
		"damaged": "{", "other version": `{"version":2,"keys":[]}`, "no hash": `{"version":1,"keys":[{"key":{"id":"key-1","tenant":"red"}}]}`,
		"bad hash":  `{"version":1,"keys":[{"key":{"id":"key-1","tenant":"red"},"hash":"00"}]}`,
		"short":     `{"version":1,"keys":[{"key":{"id":"key-1","tenant":"red"},"hash":"01"}]}`,
		"long":      `{"version":1,"keys":[{"key":{"id":"key-1","tenant":"red"},"hash":"` + strings.Repeat("01", 33) + `"}]}`,
		"no hex":    `{"version":1,"keys":[{"key":{"id":"key-1","tenant":"red"},"hash":"` + strings.Repeat("0x", 32) + `"}]}`,
		"twice":     `{"version":1,"keys":[` + good + `,` + good + `]}`,
		"no tenant": `{"version":1,"keys":[{"key":{"id":"key-1"},"hash":"` + strings.Repeat("01", 32) + `"}]}`,
		"empty":     "",
	} {
		home := t.TempDir()
		if err := os.WriteFile(filepath.Join(home, "keys.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := key.Open(context.Background(), home); api.CodeOf(err) != api.CodeState {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A home that is not there, or a file of another kind, is an error and not a home without keys.
func TestNoHome(t *testing.T) {
	if s, err := key.Open(context.Background(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Errorf("keys of no home: %v", s.List())
	}
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "keys.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if s, err := key.Open(context.Background(), home); err == nil {
		t.Errorf("keys of a directory: %v", s.List())
	}
}

func TestManyAtOnce(t *testing.T) {
	home := t.TempDir()
	s := open(t, home)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			k, text, err := s.Create(key.Wish{Tenant: fmt.Sprintf("t%d", i)})
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				if got, _, err := s.Verify(text); err != nil || got.ID != k.ID {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if i%2 == 0 {
				if _, err := s.Revoke(k.ID); err != nil {
					t.Error(err)
				}
				refused(t, s, text, "revoked")
			}
			s.List()
		})
	}
	wg.Wait()
	closed(t, s)
	good := 0
	for _, k := range open(t, home).List() {
		if k.RevokedAt == nil {
			good++
		}
	}
	if good != 4 {
		t.Errorf("%d keys are good", good)
	}
}

// FuzzVerify: no text but the key itself is the key.
func FuzzVerify(f *testing.F) {
	f.Add("clk_0123456789abcdef_" + strings.Repeat("0", 64))
	f.Add("Bearer x")
	home := f.TempDir()
	s, err := key.Open(context.Background(), home)
	if err != nil {
		f.Fatal(err)
	}
	_, text, err := s.Create(key.Wish{Tenant: "red"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text[:21] + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, in string) {
		k, live, err := s.Verify(in)
		if in != text && (err == nil || k.ID != "" || live != nil) {
			t.Fatalf("%q is a key", in)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	s, err := key.Open(context.Background(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	_, text, err := s.Create(key.Wish{Tenant: "red"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := s.Verify(text); err != nil {
			b.Fatal(err)
		}
	}
}
