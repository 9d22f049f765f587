// Package checkpoint stores the files of a saved memory: as the engine wrote them, compressed, or compressed and encrypted
// with a key of the operator.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"

	"filippo.io/age"

	"github.com/cloche-dev/cloche/api"
)

// maxKey bounds the size of a file of keys, in bytes.
const maxKey = 64 << 10

// Key encrypts the files of checkpoints. Its methods are safe for concurrent use.
type Key struct {
	recipient  age.Recipient
	identities []age.Identity
}

// ReadKey reads a file that age-keygen wrote. Its first identity encrypts, and each of them decrypts, so that a new key can be
// put before an old one. Only the owner of the file may have access to it.
func ReadKey(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of checkpoints: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("read the key of checkpoints: %w", err)
	} else if fi.Mode().Perm()&0o077 != 0 {
		return nil, api.Errorf(api.CodeInvalid, "other users have access to the key of checkpoints %s: its mode is %04o", path, fi.Mode().Perm()).WithHint("chmod 600 %s", path)
	}
	identities, err := age.ParseIdentities(io.LimitReader(f, maxKey))
	if err != nil {
		// The text of the error may have a part of a line.
		return nil, api.Errorf(api.CodeInvalid, "%s has a line that is not an age identity", path).WithHint("make one with age-keygen -o %s", path)
	}
	k := &Key{identities: identities}
	switch first := identities[0].(type) {
	case *age.X25519Identity:
		k.recipient = first.Recipient()
	case *age.HybridIdentity:
		k.recipient = first.Recipient()
	default:
		return nil, api.Errorf(api.CodeInvalid, "%s begins with an identity of another kind than those of age-keygen", path)
	}
	return k, nil
}

// The errors of Open about what is stored.
var (
	// ErrKey means that the files are encrypted with a key that is not given.
	ErrKey = errors.New("the checkpoint is encrypted with another key")
	// ErrDamaged means that a file was changed, or is not complete.
	ErrDamaged = errors.New("the checkpoint is damaged")
)
