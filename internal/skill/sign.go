//go:build linux || darwin

package skill

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"

	"golang.org/x/crypto/blake2b"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

const (
	// SumFile lists the SHA-256 of every other file of a package, as sha256sum writes
	// it, and SignatureFile is minisign's signature of that list.
	SumFile       = "SKILL.sum"
	SignatureFile = SumFile + ".minisig"
)

// Signer is a public key of minisign.
type Signer struct {
	id  [8]byte
	key ed25519.PublicKey
}

// ParseSigner reads a public key as minisign prints it.
func ParseSigner(text string) (Signer, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != 2+8+ed25519.PublicKeySize || string(raw[:2]) != "Ed" {
		return Signer{}, cloche.Invalid("signed_by", "%q is no public key of minisign", clip(text)).
			WithHint("give the second line of minisign.pub, which begins with RW")
	}
	s := Signer{key: ed25519.PublicKey(raw[10:])}
	copy(s.id[:], raw[2:10])
	return s, nil
}

// ID is the name of the key, as minisign says it.
func (s Signer) ID() string { return fmt.Sprintf("%016X", binary.LittleEndian.Uint64(s.id[:])) }

// verify says whether sig, a file of minisign's, is a signature of data by s.
func (s Signer) verify(data, sig []byte) bool {
	lines := strings.Split(strings.ReplaceAll(string(sig), "\r\n", "\n"), "\n")
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "untrusted comment:") {
		return false
	}
	trusted, ok := strings.CutPrefix(lines[2], "trusted comment: ")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[1]))
	if !ok || err != nil || len(raw) != 2+8+ed25519.SignatureSize || [8]byte(raw[2:10]) != s.id {
		return false
	}
	global, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[3]))
	if err != nil || len(global) != ed25519.SignatureSize {
		return false
	}
	signed := data
	switch string(raw[:2]) {
	case "ED":
		sum := blake2b.Sum512(data)
		signed = sum[:]
	case "Ed":
	default:
		return false
	}
	both := append(append([]byte{}, raw[10:]...), trusted...)
	return ed25519.Verify(s.key, signed, raw[10:]) && ed25519.Verify(s.key, both, global)
}

// Signed says which of the signers has signed a skill as it is now; "" is none. A
// package that is not signed, or of which any file is other, more or less than
// what was signed, has none.
func (s *Store) Signed(ctx context.Context, tenant, name string, signers []Signer) (id string, err error) {
	err = s.inside(ctx, tenant, name, func(_ cloche.Skill, dir *os.File) error {
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
	if _, unreadable := errors.AsType[*cloche.Error](errors.Join(err, serr)); unreadable {
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
		if _, odd := errors.AsType[*cloche.Error](err); odd {
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
		return cloche.Errorf(cloche.CodeTooLarge, "%q is too deep", clip(p))
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
		return cloche.Invalid("path", "%q is no regular file", clip(rel))
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
