//go:build linux

package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// modulesDir is where a kernel package has its modules: below /usr since Debian 13.
func modulesDir(kernel string) string {
	dir := filepath.Join(kernel, "usr", "lib", "modules")
	if _, err := os.Stat(dir); err != nil {
		return filepath.Join(kernel, "lib", "modules")
	}
	return dir
}

// withDependencies lists the files of modules, each after those that it depends on.
// What is part of the kernel itself is not among them.
func withDependencies(dir string, names []string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(path), packed), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []string
	var add func(name string) error
	add = func(name string) error {
		path, ok := files[strings.ReplaceAll(name, "-", "_")]
		if !ok || slices.Contains(out, path) {
			return nil
		}
		needs, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		out = append(out, path)
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// packed is what the name of a module ends with that is compressed.
const packed = ".xz"

// readModule reads a module as it was before it was compressed.
func readModule(path string) ([]byte, error) {
	if !strings.HasSuffix(path, packed) {
		return os.ReadFile(path)
	}
	data, err := exec.Command("xz", "--decompress", "--stdout", path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack module %s: %w", path, err)
	}
	return data, nil
}

// dependencies reads what a module says it depends on.
func dependencies(path string) ([]string, error) {
	data, err := readModule(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("read module %s: it says nothing of itself", path)
	}
	words, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for _, line := range bytes.Split(words, []byte{0}) {
		if list, ok := bytes.CutPrefix(line, []byte("depends=")); ok {
			return strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
