package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// UnpackArgv0 makes an executable that holds the guest unpack a tar on the host, see [UnpackOnHost].
const UnpackArgv0 = "cloche-unpack"

// ErrNotStarted is in an error of [UnpackOnHost] that has read nothing: there is no process.
var ErrNotStarted = errors.New("the process that unpacks did not start")

// unpackGrace is how long a process that unpacks may take to remove what an import that was given up has left.
const unpackGrace = 10 * time.Second

// HostUnpack is what the agent says of an import that the host could do in its place.
type HostUnpack struct {
	// Allowed: no process inside watches files, and nothing is mounted below the path.
	Allowed bool
	// UID and GID own what is made.
	UID, GID uint32
}

// HostUnpack asks whether the host can unpack a tar at path. An agent of an earlier version does not allow it.
func (c *Client) HostUnpack(ctx context.Context, path string, o api.TarInOptions) (HostUnpack, error) {
	if c.Version() < wire.OpHostUnpack.Since() {
		return HostUnpack{}, nil
	}
	req := wire.Request{Op: wire.OpHostUnpack, Path: api.Bytes(path), User: o.Owner, Tar: tarIn(o)}
	if req.Tar.KeepOwner {
		req.User = ""
	}
	got, err := ask[wire.HostUnpack](ctx, c, req)
	return HostUnpack(got), err
}

// HostTarget is a directory of this machine that a sandbox has, and where in it a tar is to be unpacked.
type HostTarget struct {
	// Program is an open executable that plays the role of [UnpackArgv0].
	Program *os.File
	// Root is open, and Dir the path of the target below it, "" for Root itself.
	Root *os.File
	Dir  string
	// Name is the path of the target inside.
	Name string
	// UID and GID own what is made.
	UID, GID uint32
}

// UnpackOnHost is [Client.TarIn] by a process of this machine. The process keeps the capabilities that changing
// files needs, reaches no file outside of t.Root, and reads no further than the archive. When ctx ends, it removes
// what an atomic import has left, and ends.
func UnpackOnHost(ctx context.Context, t HostTarget, o api.TarInOptions, r io.Reader) (report api.TarReport, err error) {
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd := exec.CommandContext(life, "/proc/self/fd/"+strconv.Itoa(int(t.Program.Fd())))
	cmd.Args, cmd.Env, cmd.Dir = []string{UnpackArgv0}, []string{}, "/"
	cmd.ExtraFiles = []*os.File{t.Root}
	var complaint bytes.Buffer
	cmd.Stderr = &bounding{w: &complaint, left: maxText}
	in, err := cmd.StdinPipe()
	if err != nil {
		return report, errors.Join(ErrNotStarted, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return report, errors.Join(ErrNotStarted, err)
	}
	if err := cmd.Start(); err != nil {
		return report, errors.Join(ErrNotStarted, err)
	}
	given := context.AfterFunc(ctx, func() {
		_ = in.Close()
		time.AfterFunc(unpackGrace, kill)
	})
	defer given()
	sent := make(chan error, 1)
	go func() { sent <- sendJob(in, t, o, r) }()
	report, err = readResult(out)
	_ = in.Close() // it reads no more
	serr := <-sent
	werr := cmd.Wait()
	switch {
	case serr != nil:
		return api.TarReport{}, serr
	case err != nil && ctx.Err() != nil:
		return api.TarReport{}, classify(ctx.Err())
	case err != nil:
		return api.TarReport{}, err
	case werr != nil:
		return api.TarReport{}, api.Errorf(api.CodeInternal, "the process that unpacks failed: %w: %s", werr, complaint.Bytes())
	}
	return report, nil
}

// sendJob sends a job, and after it what r yields. It returns the error of r alone: a process that does not read
// says why.
func sendJob(to io.Writer, t HostTarget, o api.TarInOptions, r io.Reader) error {
	w := wire.NewWriter(to)
	job := wire.UnpackJob{Dir: api.Bytes(t.Dir), Name: api.Bytes(t.Name), UID: t.UID, GID: t.GID, Tar: *tarIn(o)}
	if w.JSON(wire.KindRequest, job) != nil {
		return nil
	}
	buf := make([]byte, wire.MaxData)
	for {
		n, err := fill(r, buf)
		if n > 0 && w.Bytes(wire.KindData, buf[:n]) != nil {
			return nil
		}
		switch err { //nolint:errorlint // see fill
		case nil:
			continue
		case io.EOF: //nolint:errorlint // see fill
			_ = w.End()
			return nil
		}
		if c, ok := to.(io.Closer); ok {
			_ = c.Close() // without an end mark
		}
		return fmt.Errorf("read content: %w", err)
	}
}

// readResult reads the answer of a process that unpacks.
func readResult(from io.Reader) (api.TarReport, error) {
	kind, payload, err := wire.NewReader(from).Next()
	switch {
	case err != nil:
		return api.TarReport{}, api.Errorf(api.CodeInternal, "the process that unpacks ended without an answer: %w", err)
	case kind == wire.KindFail:
		return api.TarReport{}, decodeFailure(payload)
	case kind != wire.KindReply:
		return api.TarReport{}, unexpected(kind)
	}
	return decodeReport(payload)
}

// bounding keeps the first bytes that are written.
type bounding struct {
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (b *bounding) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	if _, err := b.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
