// Command pictures writes the pictures of the documentation. It reads the descriptions in
// docs/pictures/*.txt and writes an SVG file beside each one. Files with a .cast beside them are
// recordings, which .ci/recording makes.
//
//	go run ./.ci/pictures          # from the repository's root
//	go run ./.ci/pictures -check   # exits with 1 if a file is out of date
//
// A description has one statement on each line. Lengths are in units of 10 pixels, and # starts
// a comment:
//
//	title TEXT                       the heading of the picture
//	desc TEXT                        the picture in words, for screen readers; may be repeated
//	size WIDTH HEIGHT
//	frame ID X Y WIDTH HEIGHT STYLE  a group; the indented line below is its label
//	box ID X Y WIDTH HEIGHT STYLE    the indented lines below are its text
//	note ID X Y WIDTH HEIGHT         text without a border
//	arrow FROM TO [OPTION ...]       the indented lines below are its label
//
// A line of text that starts with "* " is bold. FROM and TO are ID.SIDE or ID.SIDE@OFFSET. The
// offset is from the left or the top, and the default is the middle of the side. The options of
// an arrow are dashed, both (a head at both ends), bend=N (where the middle part is), part=N
// (which part has the label), at=N (where the middle of the label is along that part) and
// side=left or side=below (on which side of the part the label is).
//
// A description with an error gives no picture. Errors are boxes that overlap, text that is
// wider or higher than its box, arrows that cross boxes, and labels that cover something.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "write no files, and fail if one is out of date")
	dir := flag.String("dir", "docs/pictures", "the directory of the pictures")
	flag.Parse()
	if err := run(os.Stdout, *dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// run writes or checks the picture of each description in a directory.
func run(out io.Writer, dir string, check bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	sources, err := descriptions(dir)
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return fmt.Errorf("%s has no descriptions", dir)
	}
	var errs []error
	known := map[string]bool{}
	for _, name := range sources {
		picture := strings.TrimSuffix(name, ".txt") + ".svg"
		known[picture] = true
		want, err := render(root, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		is, err := root.ReadFile(picture)
		switch {
		case err == nil && bytes.Equal(is, want):
		case err != nil && !errors.Is(err, os.ErrNotExist):
			errs = append(errs, err)
		case check:
			errs = append(errs, fmt.Errorf("%s is out of date: run make generate", filepath.Join(dir, picture)))
		default:
			if err := root.WriteFile(picture, want, 0o644); err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintln(out, "wrote", filepath.Join(dir, picture))
		}
	}
	pictures, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		return err
	}
	for _, p := range pictures {
		if !known[filepath.Base(p)] && !recorded(p) {
			errs = append(errs, fmt.Errorf("%s has no description", p))
		}
	}
	return errors.Join(errs...)
}

// descriptions returns the names of the descriptions in a directory.
func descriptions(dir string) (names []string, err error) {
	sources, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	for _, source := range sources {
		if !recorded(source) {
			names = append(names, filepath.Base(source))
		}
	}
	return names, err
}

// recorded reports whether a file belongs to a recording of a terminal, which .ci/recording
// makes in the same directory.
func recorded(path string) bool {
	_, err := os.Stat(strings.TrimSuffix(path, filepath.Ext(path)) + ".cast")
	return err == nil
}

// render returns the picture of one description.
func render(root *os.Root, name string) ([]byte, error) {
	text, err := root.ReadFile(name)
	if err != nil {
		return nil, err
	}
	p, err := parse(string(text))
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(root.Name(), name), err)
	}
	return p.svg(), nil
}
