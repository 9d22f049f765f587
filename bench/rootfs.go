//go:build linux

package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	erofs "github.com/erofs/go-erofs"
)

// busybox is the one program of the image that all peers run: static, so that
// none of them pays for a loader.
const busybox = "/bin/busybox"

func applets() []string { return []string{"sh", "echo", "true", "cat", "sleep"} }

func imageDirs() []string {
	return []string{"bin", "dev", "etc", "proc", "root", "sys", "tmp", "workspace"}
}

// readBusybox refuses one that is not static: it would not run in the image.
func readBusybox() ([]byte, error) {
	data, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("read busybox (package busybox-static, or -install): %w", err)
	}
	return data, nil
}

// writeErofs writes the image as EROFS.
func writeErofs(path string, program []byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := erofs.Create(f)
	for _, d := range imageDirs() {
		if err := w.Mkdir("/"+d, 0o755); err != nil {
			return fmt.Errorf("make image: %w", err)
		}
	}
	p, err := w.Create("/bin/busybox")
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if _, err := p.Write(program); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := p.Chmod(0o755); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := p.Close(); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	for _, a := range applets() {
		if err := w.Symlink("busybox", "/bin/"+a); err != nil {
			return fmt.Errorf("make image: %w", err)
		}
	}
	return w.Close()
}

// writeTree writes the same files as a directory.
func writeTree(root string, program []byte) error {
	for _, d := range imageDirs() {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("make root: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, busybox), program, 0o755); err != nil {
		return fmt.Errorf("make root: %w", err)
	}
	for _, a := range applets() {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			return fmt.Errorf("make root: %w", err)
		}
	}
	return nil
}

// writeTar writes the same image for docker import.
func writeTar(out io.Writer, program []byte) error {
	w := tar.NewWriter(out)
	add := func(h *tar.Header, data []byte) error {
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, d := range imageDirs() {
		if err := add(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}, nil); err != nil {
			return fmt.Errorf("write tar: %w", err)
		}
	}
	if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))}, program); err != nil {
		return fmt.Errorf("write tar: %w", err)
	}
	for _, a := range applets() {
		if err := add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: int64(fs.ModePerm)}, nil); err != nil {
			return fmt.Errorf("write tar: %w", err)
		}
	}
	return w.Close()
}
