package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// ErrLocked says that another process has the lock of a file.
var ErrLocked = errors.New("another process has the lock")

// CreateTemp makes a file with a name that begins with prefix and is new. It is
// opened as OpenFile does.
func CreateTemp(dir, prefix string) (*os.File, error) {
	for range 1000 {
		f, err := OpenFile(filepath.Join(dir, prefix+strconv.FormatUint(rand.Uint64(), 36)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("make a file in %s: every name is taken", dir)
}

// ForeignError says whose a file or directory is that is not this user's, or who else gets
// at it, as the end of a sentence that begins with its name.
type ForeignError struct{ why string }

// Error implements error.
func (e *ForeignError) Error() string { return e.why }
