// Package rulefile reads the operator's policy file and follows its changes.
package rulefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// maxFile is more than a policy file may have, which its parser says.
const maxFile = 2 << 20

// File is where the operator's rules are.
type File struct {
	// Path is the file's.
	Path string
	// Optional: where there is no file, there are no rules.
	Optional bool
	// Over are keys that are set over what the file says, each time that it is read.
	Over []rules.Override
}

// Loaded are the rules as they were read.
type Loaded struct {
	Rules rules.Rules
	// Digest is the file's SHA-256 in hexadecimal digits; empty is no file.
	Digest string
}

// Load reads the file. The error is a *api.Error, or wraps one, for the operator
// of the daemon. Digest is set also when the content is invalid.
func (f File) Load() (Loaded, error) {
	data, err := f.Text()
	if err != nil {
		return Loaded{}, err
	}
	if data == nil {
		rules, err := rules.ParseRulesOver(nil, f.Over)
		return Loaded{Rules: rules}, err
	}
	sum := sha256.Sum256(data)
	out := Loaded{Digest: hex.EncodeToString(sum[:])}
	if saysNothing(data) {
		return out, api.Invalid("version", "policy file %s is empty", filepath.Clean(f.Path)).
			WithHint("write \"version: %d\" into it where no rule is meant, or remove it", rules.RulesVersion)
	}
	if out.Rules, err = rules.ParseRulesOver(data, f.Over); err != nil {
		return out, fmt.Errorf("policy file %s: %w", filepath.Clean(f.Path), err)
	}
	return out, nil
}

// saysNothing reports whether a file has only comments: one that was cut off, or
// not filled yet, must not lift all rules.
func saysNothing(data []byte) bool {
	for line := range bytes.Lines(data) {
		text, _, _ := bytes.Cut(line, []byte("#"))
		switch string(bytes.TrimSpace(text)) {
		case "", "---", "...", "{}", "null", "~":
		default:
			return false
		}
	}
	return true
}

// Text is what is in the file; nil means that the file is missing, and may be.
func (f File) Text() ([]byte, error) {
	data, err := f.read()
	if errors.Is(err, fs.ErrNotExist) && f.Optional {
		return nil, nil
	}
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "the policy file cannot be read: %w", err).
			WithHint("name one with --config, or put policy.yaml into the home")
	}
	return append([]byte{}, data...), nil
}

func (f File) read() ([]byte, error) {
	// An open of a pipe would block.
	fi, err := os.Stat(f.Path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	in, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, maxFile))
}

// stamp tells a changed file from the same one without reading it. The zero value
// is no file.
type stamp struct {
	there bool
	size  int64
	at    time.Time
	info  os.FileInfo
}

func (f File) stamp() stamp {
	fi, err := os.Stat(f.Path)
	if err != nil {
		return stamp{}
	}
	return stamp{there: true, size: fi.Size(), at: fi.ModTime(), info: fi}
}

func (s stamp) same(o stamp) bool {
	return s.there == o.there && s.size == o.size && s.at.Equal(o.at) && (!s.there || os.SameFile(s.info, o.info))
}
