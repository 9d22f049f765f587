//go:build linux

package guest

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// TestImportAfterAKilledAgent: the next import into the target removes what an agent has
// left that was killed while the archive arrived.
func TestImportAfterAKilledAgent(t *testing.T) {
	in := boot(t, nil)
	target := t.TempDir()
	const tree = `find . -type f -printf '%p %m %T@\n' | sort; cat f d/s`
	before := in.run(t, "cd "+target+" && echo old > f && mkdir d && echo sub > d/s && "+tree)
	stagings := func() []string {
		all, _ := filepath.Glob(target + "/.cloche-import-*")
		return all
	}
	body, w := io.Pipe()
	defer w.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := in.TarIn(t.Context(), target, api.TarInOptions{Atomic: true}, body)
		ended <- err
	}()
	part := tarfile.Pack(t, tarfile.Regular("f", "new"), tarfile.Regular("g", strings.Repeat("more ", 1<<18))).Bytes()
	if _, err := w.Write(part[:1<<20]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(stagings()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the import has not begun")
		}
	}
	if err := in.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.CloseWithError(io.ErrClosedPipe)
	if err := <-ended; err == nil {
		t.Fatal("the import has ended well")
	}
	staging := stagings()
	if len(staging) != 1 {
		t.Fatal("nothing is left to recover")
	}
	if err := os.Chtimes(staging[0], time.Time{}, time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	again := boot(t, nil)
	if _, err := again.TarIn(t.Context(), target, api.TarInOptions{Atomic: true}, tarfile.Pack(t)); err != nil {
		t.Fatal(err)
	}
	if got := again.run(t, "cd "+target+" && "+tree); got != before {
		t.Errorf("the target is\n%s\nwant\n%s", got, before)
	}
}

// TestImportTakesNoImports: an archive cannot bring a directory that the next import
// would take for one of its own.
func TestImportTakesNoImports(t *testing.T) {
	in := boot(t, nil)
	name := ".cloche-import-" + strings.Repeat("0d", 16)
	for _, atomic := range []bool{false, true} {
		target := t.TempDir()
		report, err := in.TarIn(t.Context(), target, api.TarInOptions{Atomic: atomic}, tarfile.Pack(t, tarfile.Regular(name+"/journal", "x"), tarfile.Regular("d/"+name+"/old/f", "x"), tarfile.Regular("f", "x")))
		if err != nil || report.Entries != 1 || len(report.Skipped) != 2 {
			t.Fatalf("%+v, %v", report, err)
		}
		if got := in.run(t, "cd "+target+" && ls -A"); got != "f" {
			t.Errorf("there is %q", got)
		}
	}
}
