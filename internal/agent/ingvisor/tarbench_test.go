//go:build linux

package ingvisor

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// BenchmarkTar measures archives in and out of a directory that a gofer serves,
// of many small files and of one big one, against a plain tar: on the host, on
// the same disk, and inside, fed through the same stream as any program.
func BenchmarkTar(b *testing.B) {
	in := boot(b, nil)
	for name, archive := range map[string][]byte{"small": manyFiles(b, 2000, 4<<10), "big": manyFiles(b, 1, 128<<20)} {
		in.run(b, "rm -rf /work/src && mkdir /work/src")
		if _, err := in.TarIn(b.Context(), "/work/src", api.TarInOptions{}, bytes.NewReader(archive)); err != nil {
			b.Fatal(err)
		}
		host := b.TempDir()
		bench := func(kind string, clean bool, fn func() error) {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(archive)))
				for b.Loop() {
					b.StopTimer()
					if clean {
						in.run(b, "rm -rf /work/dst && mkdir /work/dst")
						os.RemoveAll(filepath.Join(host, "dst"))
						os.Mkdir(filepath.Join(host, "dst"), 0o700)
					}
					b.StartTimer()
					if err := fn(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		bench("in/host tar", true, func() error {
			cmd := exec.Command("tar", "-x", "-C", filepath.Join(host, "dst"))
			cmd.Stdin = bytes.NewReader(archive)
			return cmd.Run()
		})
		bench("in/tar inside", true, func() error {
			s := shell("tar -x -C /work/dst")
			st, err := in.Stream(b.Context(), s)
			if err != nil {
				return err
			}
			if _, err := st.Write(archive); err != nil {
				return err
			}
			if err := st.CloseWrite(); err != nil {
				return err
			}
			for {
				if ev, err := st.Recv(); err != nil || ev.Exit != nil {
					return err
				}
			}
		})
		for _, o := range []api.TarInOptions{{}, {Atomic: true}} {
			bench(fmt.Sprintf("in/atomic=%t", o.Atomic), true, func() error {
				_, err := in.TarIn(b.Context(), "/work/dst", o, bytes.NewReader(archive))
				return err
			})
		}
		bench("out/tar inside", false, func() error {
			st, err := in.Stream(b.Context(), shell("tar -c -C /work/src ."))
			if err != nil {
				return err
			}
			for {
				if ev, err := st.Recv(); err != nil || ev.Exit != nil {
					return err
				}
			}
		})
		os.RemoveAll(filepath.Join(host, "dst"))
		os.Mkdir(filepath.Join(host, "dst"), 0o700)
		cmd := exec.Command("tar", "-x", "-C", filepath.Join(host, "dst"))
		cmd.Stdin = bytes.NewReader(archive)
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		bench("out/host tar", false, func() error {
			cmd := exec.Command("tar", "-c", "-C", filepath.Join(host, "dst"), ".")
			cmd.Stdout = struct{ io.Writer }{io.Discard}
			return cmd.Run()
		})
		bench("out", false, func() error {
			_, err := in.TarOut(b.Context(), "/work/src", api.TarOutOptions{}, io.Discard)
			return err
		})
	}
}

// manyFiles is an archive of n files of size bytes, 40 in a directory.
func manyFiles(t testing.TB, n, size int) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	data := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	for i := range n {
		if i%40 == 0 {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("d%d/", i/40), Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i/40, i), Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
