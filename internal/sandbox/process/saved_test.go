package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestTailOfSavedLogs(t *testing.T) {
	e := func(data string) api.LogEntry { return api.LogEntry{Data: api.Bytes(data)} }
	all := []api.LogEntry{e("one\ntwo\nth"), e("ree\nfour\n"), e("five\n")}
	for n, want := range map[int]string{
		0: "one\ntwo\nthree\nfour\nfive\n", 1: "five\n", 2: "four\nfive\n", 3: "three\nfour\nfive\n", 9: "one\ntwo\nthree\nfour\nfive\n",
	} {
		var got strings.Builder
		for _, e := range tail(all, n) {
			got.Write(e.Data)
		}
		if got.String() != want {
			t.Errorf("tail %d is %q, want %q", n, got.String(), want)
		}
	}
}

// What of saved logs cannot be read is a gap, and the rest is served.
func TestDamagedSavedLogs(t *testing.T) {
	const first = `{"exec_id":"x-1","stream":"stdout","offset":0,"position":0,"data":"one\n"}`
	const second = `{"exec_id":"x-1","stream":"stderr","offset":0,"position":4,"data":"two\n"}`
	const third = `{"exec_id":"x-1","stream":"stdout","offset":4,"position":8,"data":"three\n"}`
	for name, c := range map[string]struct {
		lines  []string
		stream api.Stream
		want   string
	}{
		"whole":           {[]string{first, second, third}, "", "one\ntwo\nthree\n"},
		"first removed":   {[]string{second, third}, "", "<4>two\nthree\n"},
		"middle torn":     {[]string{first, second[:40], third}, "", "one\n<4>three\n"},
		"middle of bytes": {[]string{first, "\x00\x00\x00", third}, "", "one\n<4>three\n"},
		"of one stream":   {[]string{first, "{}", third}, api.Stdout, "one\nthree\n"},
		"one stream torn": {[]string{first[:30], second, third}, api.Stdout, "<4>three\n"},
		"a text of marks": {[]string{"[1,2]", `"x"`, first}, "", "one\n"},
		"the end is torn": {[]string{first, second[:50]}, "", "one\n"},
	} {
		s := &Table{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(s.dir, logsFile), []byte(strings.Join(c.lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		err := s.savedLogs(api.LogOptions{Stream: c.stream}, func(e api.LogEntry) error {
			if e.Gap > 0 {
				fmt.Fprintf(&got, "<%d>", e.Gap)
			}
			got.Write(e.Data)
			return nil
		})
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got.String(), err, c.want)
		}
	}
}
