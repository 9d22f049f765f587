//go:build linux

package ingvisor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/image"
)

// BenchmarkStart compares sandboxes made of an image, which the sentry reads
// through one descriptor, with sandboxes whose tools a gofer serves, taking turns
// so that the machine is the same for both: from the beginning of the create to
// the output of the first program, and what twenty of them occupy, with the pages
// that they share counted once.
func BenchmarkStart(b *testing.B) {
	python := []string{"/bin/sh", "/usr/bin/python3"}
	libs, _ := filepath.Glob("/usr/lib/python3*")
	if _, err := os.Stat(python[1]); err != nil || len(libs) == 0 {
		b.Skip("needs python3 below /usr: it is the workload")
	}
	k := open(b)
	img, err := k.store.BuildBase(b.Context(), "python", append(python, libs...), image.ImportOptions{})
	must(b, err)
	b.Logf("the image occupies %d MiB", img.SizeBytes>>20)
	roots := map[string]image.Rootfs{}
	for _, ref := range []string{"python", "host"} {
		roots[ref], err = k.store.Resolve(b.Context(), ref, image.Need{})
		must(b, err)
	}
	for what, argv := range map[string][]string{
		"sh":     {"/bin/sh", "-c", "echo hello"},
		"python": {"/usr/bin/python3", "-c", "import json, argparse, http.client; print('hello')"},
	} {
		b.Run(what, func(b *testing.B) {
			took := map[string][]time.Duration{}
			for b.Loop() {
				for ref, root := range roots {
					begun := time.Now()
					exec, stop := k.start(root, false)
					if out, _ := exec(argv...); !strings.HasPrefix(out, "hello") {
						b.Fatalf("%s said %q", ref, out)
					}
					took[ref] = append(took[ref], time.Since(begun))
					stop()
				}
			}
			for ref, all := range took {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, ref+"-ms")
			}
		})
	}
	for ref, root := range roots {
		b.Run("memory "+ref, func(b *testing.B) {
			var stops []func()
			for range 20 {
				exec, stop := k.start(root, false)
				stops = append(stops, stop)
				exec("/usr/bin/python3", "-c", "import json, argparse, http.client")
			}
			pss, rss, err := memory()
			for _, stop := range stops {
				stop()
			}
			must(b, err)
			for b.Loop() {
				continue // measured once is enough
			}
			b.ReportMetric(float64(pss)/20/1024, "PSS-MiB-each")
			b.ReportMetric(float64(rss)/20/1024, "RSS-MiB-each")
		})
	}
}

// memory sums up what the processes of this program's sandboxes occupy, in KiB.
func memory() (pss, rss int64, err error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return 0, 0, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, 0, err
	}
	for _, dir := range dirs {
		exe, err := os.Stat(dir + "/exe")
		if err != nil || !os.SameFile(self, exe) || dir == fmt.Sprint("/proc/", os.Getpid()) {
			continue
		}
		f, err := os.Open(dir + "/smaps_rollup")
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			words := strings.Fields(lines.Text())
			if len(words) < 2 {
				continue
			}
			n, _ := strconv.ParseInt(words[1], 10, 64)
			switch words[0] {
			case "Pss:":
				pss += n
			case "Rss:":
				rss += n
			}
		}
		f.Close()
	}
	return pss, rss, nil
}
