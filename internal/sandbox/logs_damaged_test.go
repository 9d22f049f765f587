//go:build linux

package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/longtest"
)

// What is lost of the saved output of a process that has ended is a gap in its
// logs, under the daemon that saw it end and under the next one, and a follower
// comes to the end.
func TestDamagedProcessLog(t *testing.T) {
	longtest.Skip(t, "it makes a sandbox for each kind of damage")
	damages := map[string]func(path string) error{
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"removed": os.Remove,
		"halved": func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()/2)
		},
	}
	for _, which := range []string{"first", "middle", "last"} {
		for name, damage := range damages {
			t.Run(which+"/"+name, func(t *testing.T) {
				w := newFixture(t)
				m := w.manager(false)
				sb := w.create(m, "dev")
				const small, large = 3000, 40 << 20
				run(t, m, sb, "small", "head -c 3000 /dev/zero | tr '\\0' x; exit 3")
				spec := shell("large", "head -c 41943040 /dev/zero; exit 3")
				spec.OnFull = api.OnFullBlock
				start(t, m, sb, spec)
				collected(t, m, sb, "large")
				for _, id := range []string{"small", "large"} {
					files, err := filepath.Glob(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes", id, "log", "*.spool"))
					if err != nil || len(files) == 0 {
						t.Fatalf("%d files, %v", len(files), err)
					}
					i := map[string]int{"first": 0, "middle": len(files) / 2, "last": len(files) - 1}[which]
					if err := damage(files[i]); err != nil {
						t.Fatal(err)
					}
				}
				check := func() {
					t.Helper()
					for id, size := range map[string]int64{"small": small, "large": large} {
						for _, stream := range []api.Stream{"", api.Stdout} {
							var gap, data int64
							var end string
							err := m.Logs(t.Context(), operator, sb.ID, api.LogOptions{ExecID: id, Stream: stream, Follow: true}, func(e api.LogEntry) error {
								gap += e.Gap
								data += int64(len(e.Data))
								end = e.End
								return nil
							})
							if err != nil || gap == 0 || gap+data != size || end != "exited" {
								t.Errorf("%s, stream %q: %d bytes are missing and %d are there, the end is %q, %v; want %d together", id, stream, gap, data, end, err, size)
							}
						}
					}
				}
				check()
				if err := m.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				m = w.manager(false)
				check()
			})
		}
	}
}

// A damaged list of execs does not hide the managed processes of a stopped sandbox.
func TestDamagedSavedProcesses(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "torn": `[{"exec_id":"x-1","ar`, "of zeros": strings.Repeat("\x00", 512), "another type": `{"a":1}`} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			sb := w.create(m, "dev")
			run(t, m, sb, "web", "echo out")
			if _, err := m.Stop(t.Context(), operator, "dev", nil); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes.json")
			if _, err := os.Stat(file); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := m.Processes(t.Context(), operator, "dev")
			if err != nil || len(list) != 1 || list[0].ExecID != "web" {
				t.Errorf("processes %+v, %v", list, err)
			}
			if got := output(t, m, sb, api.LogOptions{ExecID: "web"}); got != "out\n" {
				t.Errorf("output %q", got)
			}
		})
	}
}
