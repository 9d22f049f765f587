package filesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
)

// pull carries what changed in the copy to the directory.
func (c *Copy) pull(ctx context.Context, a Agent, w *work, guest map[string]state, rep *Report) error {
	for _, p := range slices.Backward(w.removeHost) {
		err := c.o.Root.Remove(p)
		switch {
		case err == nil:
			rep.Out++
		case errors.Is(err, fs.ErrNotExist):
		case guest[p] == (state{}):
			// It is a directory that has other files by now: it stays, and comes back in the copy.
			w.push = append(w.push, p)
			continue
		default:
			return fmt.Errorf("remove %s: %w", p, err)
		}
		if guest[p] == (state{}) {
			delete(c.base, p)
		}
	}
	for names := range chunks(w.pull) {
		if err := c.pullChunk(ctx, a, names, guest, rep); err != nil {
			return err
		}
	}
	return nil
}

// chunks splits paths into lists that one request can have.
func chunks(names []string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < len(names) && (n == 0 || size+len(names[n])+8 <= agent.MaxPackNames/2) {
				size += len(names[n]) + 8
				n++
			}
			if !yield(names[:n]) {
				return
			}
			names = names[n:]
		}
	}
}

func (c *Copy) pullChunk(ctx context.Context, a Agent, names []string, guest map[string]state, rep *Report) error {
	r, w := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := a.PackOnly(ctx, c.o.Target, names, w)
		w.CloseWithError(err)
	})
	u := &localdir.Unpacker{Root: c.o.Root, MaxBytes: MaxBytes}
	err := u.Unpack(r)
	r.CloseWithError(errors.New("the copy cannot be unpacked"))
	wg.Wait()
	for _, s := range u.Report.Skipped {
		rep.skip(s.Path, s.Reason)
	}
	if err != nil {
		return fmt.Errorf("carry files out of the sandbox: %w", err)
	}
	for _, p := range names {
		info, err := c.o.Root.Lstat(p)
		var h state
		if err == nil {
			h, _ = hostState(info)
			c.own(p)
			rep.Out++
		}
		// What was skipped is not tried again until it changes.
		c.base[p] = pair{h, guest[p]}
	}
	return nil
}

// own gives a file to the owner of the directory.
func (c *Copy) own(p string) {
	if c.o.UID >= 0 {
		_ = c.o.Root.Lchown(p, c.o.UID, c.o.GID)
	}
}

// apply carries what changed in the directory to the copy.
func (c *Copy) apply(ctx context.Context, a Agent, w *work, host map[string]state, rep *Report) error {
	if len(w.removeGuest) == 0 && len(w.push) == 0 {
		return nil
	}
	var above string // was removed with all below it
	for _, p := range w.removeGuest {
		if above != "" && strings.HasPrefix(p, above+"/") {
			continue
		}
		err := a.Remove(ctx, path.Join(c.o.Target, p), true)
		if err != nil && api.CodeOf(err) != api.CodeNotFound {
			return fmt.Errorf("remove from the copy: %w", err)
		}
		above = p
		rep.In++
	}
	slices.Sort(w.push)
	if err := c.push(ctx, a, w.push, host, false, rep); err != nil {
		return err
	}
	return c.remember(ctx, a, host, slices.Concat(w.push, w.removeGuest))
}

// errUnsteady is in the error of a sync that read a file while a program of this machine wrote it.
var errUnsteady = errors.New("a file changed while it was read")

// errNotTaken ends the packing of files whose reader has gone.
var errNotTaken = errors.New("the sandbox does not take the files")

// push carries files of the directory to the copy. clear removes what the copy has beside.
func (c *Copy) push(ctx context.Context, a Agent, names []string, host map[string]state, clear bool, rep *Report) error {
	var size int64
	want := map[string]bool{}
	for _, p := range names {
		want[p] = true
		size += host[p].Size
	}
	if size > MaxBytes {
		return api.Errorf(api.CodeTooLarge, "%d bytes of files are to be carried into the sandbox at once, and the limit is %d", size, int64(MaxBytes)).
			WithHint("use a smaller directory")
	}
	if len(names) == 0 && !clear {
		return nil
	}
	r, w := io.Pipe()
	var packed api.TarReport
	var perr error
	var wg sync.WaitGroup
	wg.Go(func() {
		perr = localdir.PackOnly(w, c.o.Root, func(p string) bool { return want[p] }, &packed)
		w.CloseWithError(perr)
	})
	_, err := a.TarIn(ctx, c.o.Target, api.TarInOptions{Clear: clear}, r)
	r.CloseWithError(errNotTaken)
	wg.Wait()
	if perr != nil && !errors.Is(perr, errNotTaken) && ctx.Err() == nil {
		return fmt.Errorf("carry files into the sandbox: %w: %w", errUnsteady, perr)
	}
	if err != nil {
		return fmt.Errorf("carry files into the sandbox: %w", err)
	}
	rep.In += len(names)
	return nil
}

// remember records the files that were carried into the copy; nil is all of them. One that a program has
// changed already is not like its original: it counts as changed.
func (c *Copy) remember(ctx context.Context, a Agent, host map[string]state, names []string) error {
	guest, err := c.guestTree(ctx, a)
	if err != nil {
		return err
	}
	if names == nil {
		for p := range host {
			names = append(names, p)
		}
	}
	for _, p := range names {
		h, g := host[p], guest[p]
		switch {
		case h == (state{}) && g == (state{}):
			delete(c.base, p)
		case h.same(g):
			c.base[p] = pair{h, g}
		default:
			c.base[p] = pair{Host: h}
		}
	}
	return nil
}
