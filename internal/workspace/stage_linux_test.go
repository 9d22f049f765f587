package workspace_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	alice = 4001
	bob   = 4002
	team  = 4100
)

// stage opens and stages a directory of the host.
func stage(t *testing.T, path string, readOnly bool) string {
	t.Helper()
	d, err := workspace.OpenDir(path)
	must(t, err)
	defer d.Close()
	s, err := d.Stage(tempDir(t), readOnly)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Path
}

// aliceDir is a directory of a user with files of several.
func aliceDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(tempDir(t), "project")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Chown(dir, alice, alice))
	write(t, dir+"/mine", "mine", 0o600, alice, alice)
	write(t, dir+"/team", "team", 0o600, alice, team)
	write(t, dir+"/mine-root-group", "x", 0o600, alice, 0)
	write(t, dir+"/root-secret", "secret", 0o600, 0, 0)
	write(t, dir+"/root-group-secret", "secret", 0o640, 0, 0)
	write(t, dir+"/root-public", "public", 0o644, 0, 0)
	write(t, dir+"/bob-secret", "secret", 0o660, bob, alice+1000)
	return dir
}

func TestStagedOwnerIsSandboxRootAndNobodyElseIs(t *testing.T) {
	needRoot(t)
	dir := aliceDir(t)
	in := stage(t, dir, false)

	for _, name := range []string{"", "mine", "team", "mine-root-group"} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(in, name), &st))
		if st.Uid != 0 {
			t.Errorf("%q is seen as user %d's, want root's", name, st.Uid)
		}
	}
	for _, name := range []string{"mine", "team", "mine-root-group"} {
		if err := os.WriteFile(filepath.Join(in, name), []byte("new"), 0o600); err != nil {
			t.Errorf("the owner's %s cannot be written: %v", name, err)
		}
	}
	for _, name := range []string{"root-secret", "root-group-secret", "bob-secret"} {
		if data, err := os.ReadFile(filepath.Join(in, name)); err == nil {
			t.Errorf("%s can be read: %q", name, data)
		}
	}
	if _, err := os.ReadFile(in + "/root-public"); err != nil {
		t.Errorf("what the world may read cannot be read: %v", err)
	}
	for _, name := range []string{"root-secret", "root-public", "bob-secret"} {
		if f, err := os.OpenFile(filepath.Join(in, name), os.O_WRONLY, 0); err == nil {
			f.Close()
			t.Errorf("another user's %s can be written", name)
		}
		if err := os.Chmod(filepath.Join(in, name), 0o666); err == nil {
			t.Errorf("another user's %s can be made readable", name)
		}
		if err := os.Chown(filepath.Join(in, name), 0, 0); err == nil {
			t.Errorf("another user's %s can be taken", name)
		}
	}
	must(t, os.WriteFile(in+"/new", nil, 0o600))
	var st unix.Stat_t
	must(t, unix.Lstat(dir+"/new", &st))
	if st.Uid != alice || st.Gid != alice {
		t.Errorf("a new file is %d:%d on disk, want %d:%d", st.Uid, st.Gid, alice, alice)
	}
	for _, uid := range []int{bob, 1, 65534} {
		if err := os.Lchown(in+"/new", uid, 0); err == nil {
			t.Errorf("a file can be given to user %d", uid)
		}
	}
}

// TestStagedServedByAnEngine takes the place of an engine's file server, which
// is root in a user namespace of its own: there no file of another user can be
// taken, by either half of chown.
func TestStagedServedByAnEngine(t *testing.T) {
	const where = "CLOCHE_TEST_SERVED"
	if in := os.Getenv(where); in != "" {
		for _, name := range []string{"root-secret", "root-public", "root-group-secret", "bob-secret"} {
			for _, ids := range [][2]int{{0, -1}, {-1, 0}, {0, 0}, {bob, -1}} {
				if err := os.Lchown(filepath.Join(in, name), ids[0], ids[1]); err == nil {
					t.Errorf("%s was given to %v", name, ids)
				}
			}
			if err := os.Chmod(filepath.Join(in, name), 0o666); err == nil {
				t.Errorf("%s was made readable", name)
			}
		}
		for _, name := range []string{"root-secret", "root-group-secret", "bob-secret"} {
			if _, err := os.ReadFile(filepath.Join(in, name)); err == nil {
				t.Errorf("%s was read", name)
			}
		}
		for _, name := range []string{"mine", "team", "mine-root-group", "made"} {
			if err := os.WriteFile(filepath.Join(in, name), nil, 0o600); err != nil {
				t.Errorf("the owner's %s cannot be written: %v", name, err)
			}
		}
		return
	}
	needRoot(t)
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^TestStagedServedByAnEngine$")
	cmd.Env = append(os.Environ(), where+"="+stage(t, aliceDir(t), false))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true, Pdeathsig: syscall.SIGKILL,
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestStagedIsRestricted(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(tempDir(t), "src")
	must(t, os.MkdirAll(dir+"/below", 0o755))
	must(t, unix.Mount("none", dir+"/below", "tmpfs", 0, "size=4k"))
	t.Cleanup(func() { unix.Unmount(dir+"/below", unix.MNT_DETACH) })
	must(t, os.WriteFile(dir+"/below/hidden", nil, 0o644))
	for _, readOnly := range []bool{false, true} {
		in := stage(t, dir, readOnly)
		var fs unix.Statfs_t
		must(t, unix.Statfs(in, &fs))
		want := int64(unix.ST_NOSUID | unix.ST_NODEV)
		if readOnly {
			want |= unix.ST_RDONLY
		}
		if got := fs.Flags & (unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY); got != want {
			t.Errorf("read-only %v: flags %#x, want %#x", readOnly, got, want)
		}
		if _, err := os.Lstat(in + "/below/hidden"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what is mounted below is seen: %v", err)
		}
		err := os.WriteFile(in+"/w", nil, 0o600)
		if readOnly != errors.Is(err, syscall.EROFS) {
			t.Errorf("read-only %v: write gives %v", readOnly, err)
		}
	}
}

func TestPrivateWorkspaceKeepsIDs(t *testing.T) {
	needRoot(t)
	dir := tempDir(t)
	d, err := workspace.Private(dir + "/workspace")
	must(t, err)
	defer d.Close()
	s, err := d.Stage(tempDir(t), false)
	must(t, err)
	defer s.Close()
	must(t, os.WriteFile(s.Path+"/f", nil, 0o600))
	if err := os.Lchown(s.Path+"/f", 1000, 1000); err != nil {
		t.Errorf("another user of the sandbox can own nothing: %v", err)
	}
}

func TestStageRefusesAFilesystemThatCannotMapOwners(t *testing.T) {
	needRoot(t)
	base := tempDir(t)
	for _, sub := range []string{"lower/p", "upper", "work", "all"} {
		must(t, os.MkdirAll(filepath.Join(base, sub), 0o755))
	}
	// Overlayfs is what a container's own root is; it maps no ids.
	err := unix.Mount("overlay", base+"/all", "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base))
	if err != nil {
		t.Skip("needs overlayfs: " + err.Error())
	}
	t.Cleanup(func() { unix.Unmount(base+"/all", unix.MNT_DETACH) })
	must(t, os.Chown(base+"/all/p", alice, alice))
	d, err := workspace.OpenDir(base + "/all/p")
	must(t, err)
	defer d.Close()
	staging := tempDir(t)
	_, err = d.Stage(staging, false)
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeUnsupported || !strings.Contains(e.Message, base+"/all/p") || e.Hint == "" {
		t.Errorf("error %v, want unsupported that names the directory, with a hint", err)
	}
	if left, _ := os.ReadDir(staging); len(left) != 0 {
		t.Errorf("a refused stage leaves %v", left)
	}
	must(t, os.Chown(base+"/all/p", 0, 0))
	own, err := workspace.OpenDir(base + "/all/p")
	must(t, err)
	defer own.Close()
	s, err := own.Stage(staging, false)
	must(t, err)
	must(t, s.Close())
}

// mounted lists what is mounted below dir.
func mounted(t *testing.T, dir string) (points []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if p := strings.Fields(line)[4]; strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	return points
}

func TestStagedIsGoneAfterCloseAndSweep(t *testing.T) {
	needRoot(t)
	src, staging := tempDir(t), tempDir(t)
	must(t, os.WriteFile(src+"/precious", nil, 0o600))
	d, err := workspace.OpenDir(src)
	must(t, err)
	defer d.Close()
	one, err := d.Stage(staging, false)
	must(t, err)
	for range 3 { // as a killed process leaves them
		_, err := d.Stage(staging, true)
		must(t, err)
	}
	if got := mounted(t, staging); len(got) != 4 {
		t.Fatalf("%d mounts, want 4", len(got))
	}
	must(t, one.Close())
	must(t, one.Close())
	if got := mounted(t, staging); len(got) != 3 {
		t.Errorf("%d mounts after Close, want 3", len(got))
	}
	must(t, workspace.SweepStaging(staging))
	must(t, workspace.SweepStaging(staging))
	must(t, workspace.SweepStaging(staging+"/missing"))
	if got := mounted(t, staging); len(got) != 0 {
		t.Errorf("after the sweep these are left: %v", got)
	}
	if left, _ := os.ReadDir(staging); len(left) != 0 {
		t.Errorf("after the sweep these are left: %v", left)
	}
	if _, err := os.Stat(src + "/precious"); err != nil {
		t.Error(err)
	}
}

func TestStageNeedsAPrivateStagingDirectory(t *testing.T) {
	needRoot(t)
	src, staging := tempDir(t), tempDir(t)
	d, err := workspace.OpenDir(src)
	must(t, err)
	defer d.Close()
	must(t, os.Chmod(staging, 0o755))
	if _, err := d.Stage(staging, false); err == nil {
		t.Error("a staging directory that others can enter was taken")
	}
	must(t, os.Chmod(staging, 0o700))
	must(t, os.Chown(staging, alice, alice))
	if _, err := d.Stage(staging, false); err == nil {
		t.Error("somebody else's staging directory was taken")
	}
}

// TestStageRace swaps the path of the source while it is opened and staged: what
// is mounted must be the directory whose identity was given to policy.
func TestStageRace(t *testing.T) {
	needRoot(t)
	base, staging := tempDir(t), tempDir(t)
	src := base + "/src"
	must(t, os.Mkdir(src, 0o755))
	must(t, os.Mkdir(base+"/other", 0o755))
	must(t, os.Symlink("/etc", base+"/link"))
	write(t, src+"/marker", "src", 0o644, 0, 0)
	write(t, base+"/other/marker", "other", 0o644, 0, 0)
	var st unix.Stat_t
	must(t, unix.Stat(src, &st))
	good := st.Ino

	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			with := base + "/other"
			if i%2 == 0 {
				with = base + "/link"
			}
			for range 2 { // there and back
				if err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, with, unix.RENAME_EXCHANGE); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	staged, refused := 0, 0
	for range 3000 {
		d, err := workspace.OpenDir(src)
		if err != nil {
			if !errors.Is(err, api.ErrInvalid) {
				t.Errorf("error %v, want invalid_argument", err)
			}
			refused++
			continue
		}
		_, ino := d.ID()
		want := "src"
		if ino != good {
			want = "other"
		}
		s, err := d.Stage(staging, true)
		d.Close()
		must(t, err)
		got, err := os.ReadFile(s.Path + "/marker")
		if err != nil || string(got) != want {
			t.Fatalf("what was opened is %s, what is mounted %q (%v)", want, got, err)
		}
		must(t, s.Close())
		staged++
	}
	close(stop)
	must(t, <-done)
	if staged == 0 || refused == 0 {
		t.Errorf("%d staged and %d refused: the race was not run", staged, refused)
	}
}

// TestStageLeavesNoProcess: the process that an id mapping needs is gone.
func TestStageLeavesNoProcess(t *testing.T) {
	needRoot(t)
	stage(t, aliceDir(t), true)
	out, err := exec.CommandContext(t.Context(), "ps", "--ppid", fmt.Sprint(os.Getpid()), "-o", "args=").Output()
	if err == nil && strings.Contains(string(out), "cloche-idmap") {
		t.Errorf("left: %s", out)
	}
}

func BenchmarkStage(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: only root stages directories as mounts")
	}
	for _, uid := range []int{0, alice} {
		b.Run(fmt.Sprintf("owner=%d", uid), func(b *testing.B) {
			src, staging := b.TempDir(), b.TempDir()
			if err := errors.Join(os.Chown(src, uid, uid), os.Chmod(staging, 0o700)); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				d, err := workspace.OpenDir(src)
				if err != nil {
					b.Fatal(err)
				}
				s, err := d.Stage(staging, false)
				if err != nil {
					b.Fatal(err)
				}
				if err := errors.Join(d.Close(), s.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
