package checkpoint

import "os"

// occupied returns the size of a file, in bytes.
func occupied(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
