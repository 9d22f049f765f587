package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/ctxio"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	partSuffix = ".part"
	// blobAttempts is how often the transfer of a blob is begun or continued
	// without a byte of progress.
	blobAttempts = 4
	// maxAttempts is how often it is continued at all: a registry that breaks off
	// after each byte is no use either.
	maxAttempts = 32
	// maxPatience is the longest Retry-After that is waited for rather than told.
	maxPatience = 5 * time.Second
)

// errDigest is content that is not what its digest says.
var errDigest = errors.New("the content does not have its digest")

// blob is a piece of an image, known by its digest.
type blob struct {
	digest string
	size   int64
}

// fetchBlob makes sure that the blob is in the store and returns its path. What
// an earlier transfer left is continued; another call for the same blob
// waits. progress gets the bytes that are here.
func (s *Store) fetchBlob(ctx context.Context, r *remote, b blob, progress func(done int64)) (string, error) {
	path := s.oci.at("blobs", hexOf(b.digest))
	if s.haveBlob(path, b) {
		progress(b.size)
		return path, nil
	}
	f, err := lockFile(ctx, path+partSuffix)
	if err != nil {
		if ctx.Err() != nil {
			return "", fromContext(ctx, r.ref, err)
		}
		return "", err
	}
	defer f.Close()
	if s.haveBlob(path, b) { // by the last holder of the lock
		_ = os.Remove(f.Name())
		progress(b.size)
		return path, nil
	}
	t := &transfer{remote: r, blob: b, f: f, sum: sha256.New(), progress: progress}
	if err := t.run(ctx); err != nil {
		if isDiskFull(err) || errors.Is(err, errDigest) {
			_ = os.Remove(f.Name())
		}
		return "", err
	}
	if err := hostfile.Settle(f, path); err != nil {
		return "", fmt.Errorf("keep blob: %w", err)
	}
	return path, nil
}

// haveBlob reports whether the blob is here, and notes its use. Its content was
// verified when it came; a layer's is again when it is read.
func (s *Store) haveBlob(path string, b blob) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != b.size {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return true
}

// transfer is one blob on its way.
type transfer struct {
	remote   *remote
	blob     blob
	f        *os.File
	have     int64 // bytes in f, and in sum
	sum      hash.Hash
	progress func(int64)
}

// run brings the blob here, from whichever endpoint has it.
func (t *transfer) run(ctx context.Context) error {
	if err := t.resume(ctx); err != nil {
		return err
	}
	resumed := t.have > 0
	var last error
	for _, e := range t.remote.endpoints {
		for failed, all := 0, 0; failed < blobAttempts && all < maxAttempts; all++ {
			before := t.have
			err := t.attempt(ctx, e)
			if err == nil {
				return nil
			}
			if errors.Is(err, errDigest) && resumed {
				// What was continued may have been bad from before.
				resumed = false
				if err := t.restart(); err != nil {
					return err
				}
				continue
			}
			if last = t.remote.classify(ctx, e, "a layer", err); errors.Is(err, errDigest) {
				last = api.Invalid("image", "image %q: %s sent %d bytes for %s that have another digest",
					t.remote.ref.Familiar(), e.host, t.have, t.blob.digest).WithCause(err)
			}
			if failed++; t.have > before {
				failed = 0
			}
			if ctx.Err() != nil || !t.again(ctx, last, failed) {
				break
			}
		}
		if ctx.Err() != nil || isDiskFull(last) {
			break
		}
		if errors.Is(last, errDigest) {
			if err := t.restart(); err != nil {
				return err
			}
		}
	}
	return last
}

// again waits before the next attempt at the same endpoint; false says that
// there is no use in one.
func (t *transfer) again(ctx context.Context, err error, failed int) bool {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || !e.Retryable || isDiskFull(err) || e.RetryAfter() > maxPatience || e.Code == api.CodeNoCapacity && e.RetryAfterMS == 0 {
		return false
	}
	pause := time.NewTimer(max(e.RetryAfter(), 25*time.Millisecond<<failed))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
		return true
	}
}

// resume takes up what an earlier transfer left.
func (t *transfer) resume(ctx context.Context) error {
	info, err := t.f.Stat()
	if err != nil {
		return fmt.Errorf("stat blob: %w", err)
	}
	if info.Size() == 0 || info.Size() > t.blob.size {
		return t.restart()
	}
	if t.have, err = io.Copy(t.sum, ctxio.Reader(ctx, io.NewSectionReader(t.f, 0, info.Size()))); err != nil {
		return fmt.Errorf("read blob: %w", err)
	}
	t.progress(t.have)
	return nil
}

func (t *transfer) restart() error {
	if err := t.f.Truncate(0); err != nil {
		return fmt.Errorf("truncate blob: %w", err)
	}
	t.have = 0
	t.sum.Reset()
	return nil
}

// attempt transfers what is missing.
func (t *transfer) attempt(ctx context.Context, e *endpoint) error {
	if t.have < t.blob.size {
		if err := t.receive(ctx, e); err != nil {
			return err
		}
	}
	if got := "sha256:" + hex.EncodeToString(t.sum.Sum(nil)); got != t.blob.digest {
		return fmt.Errorf("%w: it has %s", errDigest, got)
	}
	return nil
}

func (t *transfer) receive(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A registry that hangs is noticed by the silence, however long the whole may
	// take.
	silence := time.AfterFunc(t.remote.timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	err := t.receiveWhile(ctx, e, func() { silence.Reset(t.remote.timeout) })
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

func (t *transfer) receiveWhile(ctx context.Context, e *endpoint, heard func()) error {
	header := http.Header{}
	if t.have > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(t.have, 10)+"-")
	}
	resp, err := t.remote.get(ctx, e, "/blobs/"+t.blob.digest, header)
	if status := statusOf(err); status == http.StatusRequestedRangeNotSatisfiable && t.have > 0 {
		if err := t.restart(); err != nil {
			return err
		}
		resp, err = t.remote.get(ctx, e, "/blobs/"+t.blob.digest, nil)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if t.have > 0 && !strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(t.have, 10)+"-") {
		// It does not do ranges, or did another one.
		if resp.StatusCode != http.StatusOK {
			return &statusError{code: http.StatusRequestedRangeNotSatisfiable}
		}
		if err := t.restart(); err != nil {
			return err
		}
	}
	buf := make([]byte, 128<<10)
	for t.have < t.blob.size {
		n, err := resp.Body.Read(buf[:min(int64(len(buf)), t.blob.size-t.have)])
		heard()
		if n > 0 {
			if _, err := t.f.WriteAt(buf[:n], t.have); err != nil {
				return fmt.Errorf("write blob: %w", err)
			}
			t.sum.Write(buf[:n])
			t.have += int64(n)
			t.progress(t.have)
		}
		if err == io.EOF && t.have < t.blob.size {
			return io.ErrUnexpectedEOF
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("read blob: %w", err)
		}
	}
	return nil
}

// smallBlob fetches a blob into memory. Its size is bounded by the caller.
func (s *Store) smallBlob(ctx context.Context, r *remote, b blob) ([]byte, error) {
	path, err := s.fetchBlob(ctx, r, b, func(int64) {})
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	if err := verify(data, b.digest); err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return data, nil
}

func verify(data []byte, digest string) error {
	if got := digestOf(data); got != digest {
		return api.Invalid("image", "image: what is kept as %s has the digest %s", digest, got).WithCause(errDigest)
	}
	return nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// removeBlobs removes blobs, except those that are being fetched.
func (s *Store) removeBlobs(layers []api.ImageLayer) {
	for _, l := range layers {
		if l.Digest != "" {
			_ = os.Remove(s.oci.at("blobs", hexOf(l.Digest)))
		}
	}
}
