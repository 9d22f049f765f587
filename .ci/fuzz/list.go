package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pkg is a package with fuzz targets, and what became of them.
type pkg struct {
	path, dir string
	targets   []string
	plain     bool // cannot be instrumented

	said  bytes.Buffer
	found []string
	done  chan struct{}
}

// listed is a package as go list describes it.
type listed struct {
	ImportPath, Dir           string
	TestGoFiles, XTestGoFiles []string
	Deps                      []string
}

// list finds the packages that have fuzz targets. It reads the sources that belong to
// this system, so that nothing has to be built to be asked for them.
func list(ctx context.Context) ([]*pkg, error) {
	all, err := goList(ctx, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...")
	if err != nil {
		return nil, err
	}
	var found []*pkg
	var paths []string
	for _, l := range all {
		p := &pkg{path: l.ImportPath, dir: l.Dir, done: make(chan struct{})}
		for _, file := range slices.Concat(l.TestGoFiles, l.XTestGoFiles) {
			source, err := os.ReadFile(filepath.Join(l.Dir, file))
			if err != nil {
				return nil, err
			}
			p.targets = append(p.targets, targets(string(source))...)
		}
		if len(p.targets) > 0 {
			found, paths = append(found, p), append(paths, p.path)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no package has a fuzz target")
	}
	tests, err := goList(ctx, append([]string{"-test", "-json=ImportPath,Deps"}, paths...)...)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		p.plain = slices.ContainsFunc(tests, func(l listed) bool {
			return l.ImportPath == p.path+".test" && slices.ContainsFunc(l.Deps, func(dep string) bool {
				return strings.HasPrefix(dep, "gvisor.dev/gvisor/pkg/ring0/pagetables")
			})
		})
	}
	return found, nil
}

var target = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// targets are the names of the fuzz targets in a source.
func targets(source string) []string {
	var names []string
	for _, m := range target.FindAllStringSubmatch(source, -1) {
		names = append(names, m[1])
	}
	return names
}

func goList(ctx context.Context, args ...string) ([]listed, error) {
	out, err := output(ctx, "go", append([]string{"list"}, args...)...)
	if err != nil {
		return nil, err
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, l)
	}
}
