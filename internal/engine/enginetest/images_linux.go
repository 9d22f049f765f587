package enginetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	erofs "github.com/erofs/go-erofs"
)

// AgentTarget is where the suite mounts its agent.
const AgentTarget = "/.agent"

// Inside is the path, in every sandbox of the suite, of the program that does
// things there. Its first argument says what.
const Inside = AgentTarget + "/inside"

// Images are the two images that the suite's sandboxes are made of.
type Images struct {
	// Root is the root filesystem, with hardly anything in it.
	Root string
	// Agent holds the suite's program.
	Agent string
	// Program is the suite's program as a file of the host.
	Program string
}

// programEnv names the suite's program when it is built already: for a user
// who has no Go toolchain.
const programEnv = "ENGINETEST_PROGRAM"

// BuildImages builds the suite's program and images in dir.
func BuildImages(t testing.TB, dir string) Images {
	t.Helper()
	im := Images{
		Root:    filepath.Join(dir, "root.erofs"),
		Agent:   filepath.Join(dir, "agent.erofs"),
		Program: filepath.Join(dir, "inside"),
	}
	if ready := os.Getenv(programEnv); ready != "" {
		im.Program = ready
		im.build(t)
		return im
	}
	BuildProgram(t, im.Program, "internal/engine/enginetest/inside")
	im.build(t)
	return im
}

// BuildProgram builds a static program of this module for the inside of sandboxes.
func BuildProgram(t testing.TB, path, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/cloche-dev/cloche/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// build writes the images.
func (im Images) build(t testing.TB) {
	t.Helper()
	program, err := os.ReadFile(im.Program)
	if err != nil {
		t.Fatal(err)
	}
	WriteImage(t, im.Agent, func(w *erofs.Writer) error {
		return addFile(w, "/inside", program, 0o555)
	})
	WriteImage(t, im.Root, func(w *erofs.Writer) error {
		for _, d := range []struct {
			name string
			mode os.FileMode
		}{{"/etc", 0o755}, {"/tmp", 0o777 | os.ModeSticky}, {"/root", 0o700}, {"/old", 0o755}} {
			if err := w.Mkdir(d.name, d.mode); err != nil {
				return err
			}
		}
		if err := w.Symlink("tmp", "/scratch"); err != nil {
			return err
		}
		if err := addFile(w, "/old/file", nil, 0o644); err != nil {
			return err
		}
		return addFile(w, "/etc/marker", []byte("root image\n"), 0o644)
	})
}

// WriteImage writes an EROFS image with what fill adds.
func WriteImage(t testing.TB, path string, fill func(*erofs.Writer) error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := erofs.Create(f)
	if err := fill(w); err != nil {
		t.Fatalf("fill image: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatalf("write image: %v", err)
	}
}

func addFile(w *erofs.Writer, name string, data []byte, mode os.FileMode) error {
	f, err := w.Create(name)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Close()
}
