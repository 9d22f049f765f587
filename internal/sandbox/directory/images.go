package directory

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// RecordedImages returns the digests of the images of every sandbox on record below owners: of the
// daemon of this home, of a daemon that is not running, and of a run without a daemon. A record
// that cannot be read is an error, because its image is not known.
func RecordedImages(owners string) ([]string, error) {
	records, err := readRecords(owners, nil)
	if err != nil {
		return nil, err
	}
	var digests []string
	for _, r := range records {
		if r.Info.ImageDigest != "" {
			digests = append(digests, r.Info.ImageDigest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests), nil
}

// RecordedMemories returns what the engines have noted about the saved memories of every sandbox on record below owners, and of
// the templates in the directories. A record that cannot be read is an error.
func RecordedMemories(owners string, templates []string) ([][]byte, error) {
	records, err := readRecords(owners, templates)
	if err != nil {
		return nil, err
	}
	var notes [][]byte
	for _, r := range records {
		if r.Memory != nil {
			notes = append(notes, r.Memory)
		}
	}
	return notes, nil
}

// parts are the fields of a record that are read here. Records of every version have them.
type parts struct {
	Info struct {
		ImageDigest string `json:"image_digest"`
	}
	Memory []byte
}

// readRecords reads the records of all sandboxes below owners, and those in more directories. It leaves out a sandbox whose
// creation has not ended: what it needs is held.
func readRecords(owners string, more []string) ([]parts, error) {
	names, err := filepath.Glob(filepath.Join(owners, "*", "sandboxes", "*", Record))
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	for _, dir := range more {
		names = append(names, filepath.Join(dir, Record))
	}
	var records []parts
	for _, name := range names {
		r, err := readParts(name)
		switch {
		case err == nil:
			records = append(records, r)
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
		case Unfinished(filepath.Dir(name)):
		default:
			return nil, fmt.Errorf("read record of %s: %w", filepath.Base(filepath.Dir(name)), err)
		}
	}
	return records, nil
}

func readParts(name string) (r parts, err error) {
	f, err := os.Open(name)
	if err != nil {
		return r, err
	}
	defer f.Close()
	return r, json.NewDecoder(bufio.NewReader(f)).Decode(&r)
}
