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
	records, err := filepath.Glob(filepath.Join(owners, "*", "sandboxes", "*", Record))
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var digests []string
	for _, name := range records {
		digest, err := recordedImage(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil && Unfinished(filepath.Dir(name)) {
			continue // its creation has not ended: the image is held
		}
		if err != nil {
			return nil, fmt.Errorf("read record of %s: %w", filepath.Base(filepath.Dir(name)), err)
		}
		if digest != "" {
			digests = append(digests, digest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests), nil
}

// recordedImage reads the one field of a record, of whatever version.
func recordedImage(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var r struct {
		Info struct {
			ImageDigest string `json:"image_digest"`
		}
	}
	if err := json.NewDecoder(bufio.NewReader(f)).Decode(&r); err != nil {
		return "", err
	}
	return r.Info.ImageDigest, nil
}
