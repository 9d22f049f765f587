//go:build linux

package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
)

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// A large file belongs to the image if the image has it with that size.
func TestFilesOfAnImage(t *testing.T) {
	store, err := image.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}), write(w, "four"), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ImportStream(t.Context(), "base", &layer, image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	root, err := store.Resolve(t.Context(), "base", image.Need{})
	if err != nil {
		t.Fatal(err)
	}
	s := &live{image: record.Image{Path: root.Image}}
	for what, c := range map[string]struct {
		path string
		size int64
		want bool
	}{"the same": {"/large", 4, true}, "grown": {"/large", 5, false}, "another": {"/other", 4, false}} {
		if got := s.ofImage(largeFile(c.path, c.size)); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	s.image.Path = "/no/such/image"
	if s.ofImage(largeFile("/large", 4)) {
		t.Error("a file of an image that is gone")
	}
}

// Records of images are read from every owner, and one that cannot be read is an error.
func TestRecordedImages(t *testing.T) {
	owners := t.TempDir()
	write := func(owner, id, file, text string) {
		t.Helper()
		dir := filepath.Join(owners, owner, "sandboxes", id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "1", directory.Record, `{"Info":{"image_digest":"sha256:b"}}`)
	write("a", "2", directory.Record, `{"Info":{"image_digest":"sha256:a"}}`)
	write("b", "3", directory.Record, `{"Info":{"image_digest":"sha256:b"},"Other":1}`)
	write("b", "4", directory.Record, `{"Info":{},"Memory":"b25l"}`)
	write("templates", "6", directory.Record, `{"Memory":"dHdv"}`)
	templates := []string{filepath.Join(owners, "templates", "sandboxes", "6"), filepath.Join(owners, "absent")}
	if got, err := directory.RecordedMemories(filepath.Join(owners, "none"), templates); err != nil || len(got) != 1 || string(got[0]) != "two" {
		t.Errorf("memories of templates: %q, %v", got, err)
	}
	if got, err := directory.RecordedMemories(owners, nil); err != nil || len(got) != 2 || string(got[0]) != "one" || string(got[1]) != "two" {
		t.Errorf("memories of sandboxes: %q, %v", got, err)
	}
	if got, err := directory.RecordedImages(owners); err != nil || !slices.Equal(got, []string{"sha256:a", "sha256:b"}) {
		t.Errorf("%q, %v", got, err)
	}
	write("b", "5", directory.Record, `{`)
	if _, err := directory.RecordedImages(owners); err == nil || !strings.Contains(err.Error(), "record of 5") {
		t.Errorf("a record that is torn: %v", err)
	}
	if _, err := directory.RecordedMemories(owners, nil); err == nil {
		t.Error("memories: a record is torn, and that is no error")
	}
	// Its creation has not ended.
	write("b", "5", "creating.json", `{}`)
	if got, err := directory.RecordedImages(owners); err != nil || len(got) != 2 {
		t.Errorf("%q, %v", got, err)
	}
}

func largeFile(path string, size int64) agent.LargeFile {
	return agent.LargeFile{Path: path, Size: size}
}
