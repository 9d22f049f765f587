//go:build linux || darwin

package skill

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Signed says which of the signers has signed a skill as it is now; "" if none has. A
// package that is not signed, or that has any other, additional or missing file than
// what was signed, has no signer.
func (s *Store) Signed(ctx context.Context, tenant, name string, signers []Signer) (id string, err error) {
	err = s.inside(ctx, tenant, name, func(_ api.Skill, dir *os.File) error {
		id, err = signedBy(ctx, dir, signers)
		return err
	})
	return id, err
}

func signedBy(ctx context.Context, dir *os.File, signers []Signer) (string, error) {
	if len(signers) == 0 {
		return "", nil
	}
	list, _, err := readText(dir, SumFile)
	sig, _, serr := readText(dir, SignatureFile)
	if _, unreadable := errors.AsType[*api.Error](errors.Join(err, serr)); unreadable {
		return "", nil
	}
	if err = errors.Join(err, serr); err != nil {
		return "", err
	}
	for _, s := range signers {
		if !s.verify(list, sig) {
			continue
		}
		want, ok := readSums(string(list))
		if !ok {
			return "", nil
		}
		have := map[string]string{}
		err := sums(ctx, dir, ".", &tally{}, have)
		if _, odd := errors.AsType[*api.Error](err); odd {
			return "", nil
		}
		if err != nil || !maps.Equal(want, have) {
			return "", err
		}
		return s.ID(), nil
	}
	return "", nil
}

// readSums reads what sha256sum writes. A line that it does not write is no list.
func readSums(list string) (map[string]string, bool) {
	out := map[string]string{}
	in := bufio.NewScanner(strings.NewReader(list))
	for in.Scan() {
		sum, name, ok := strings.Cut(in.Text(), " ")
		if !ok || len(sum) != hex.EncodedLen(sha256.Size) || len(name) < 2 || name[0] != ' ' && name[0] != '*' {
			return nil, false
		}
		p := path.Clean(name[1:])
		if _, twice := out[p]; twice || len(out) > zipEntries {
			return nil, false
		}
		out[p] = strings.ToLower(sum)
	}
	return out, in.Err() == nil
}

// sums hashes every file of a package but the two that say so.
func sums(ctx context.Context, dir *os.File, p string, t *tally, into map[string]string) error {
	if strings.Count(p, "/") > maxZipParts {
		return api.Errorf(api.CodeTooLarge, "%q is too deep", clip(p))
	}
	list, err := readDir(dir, zipEntries)
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		rel := path.Join(p, e.Name())
		if rel == SumFile || rel == SignatureFile {
			continue
		}
		if err := sumEntry(ctx, dir, e.Name(), rel, e.IsDir(), t, into); err != nil {
			return err
		}
	}
	return nil
}

func sumEntry(ctx context.Context, dir *os.File, name, rel string, isDir bool, t *tally, into map[string]string) error {
	if isDir {
		below, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return edge(rel, err)
		}
		defer below.Close()
		if err := t.add(0); err != nil {
			return err
		}
		return sums(ctx, below, rel, t, into)
	}
	f, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return edge(rel, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("hash %s: %w", clip(rel), err)
	}
	if !fi.Mode().IsRegular() {
		return api.Invalid("path", "%q is no regular file", clip(rel))
	}
	if err := t.add(fi.Size()); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, fi.Size()+1)); err != nil {
		return fmt.Errorf("hash %s: %w", clip(rel), err)
	}
	into[rel] = hex.EncodeToString(h.Sum(nil))
	return nil
}
