package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// rootWriter skips a test when the engine cannot show its root.
func (s *suite) rootWriter(i engine.Instance) engine.RootWriter {
	s.Helper()
	w, ok := i.(engine.RootWriter)
	if !ok {
		s.Skip("needs an engine that shows what was changed in its root: this one does not say that it can")
	}
	return w
}

// testWriteRoot checks that everything is paused while the root is written and continues
// afterwards, even after an error, and that errors of others are returned unchanged.
func testWriteRoot(s *suite) {
	i, read := s.counting()
	w := s.rootWriter(i)
	for range 2 {
		var out bytes.Buffer
		err := w.WriteRoot(s.ctx, &out, func(context.Context) error {
			s.still(i, read)
			_, err := i.Dial(s.ctx)
			s.code("dial while the root is written", err, api.CodeState)
			return nil
		})
		if err != nil {
			s.Fatalf("write root: %v (%v)", err, errors.Unwrap(err))
		}
		s.layer(out.Bytes())
		s.moves(read)
		s.alive(i)
	}
	mine := errors.New("mine")
	if err := w.WriteRoot(s.ctx, io.Discard, func(context.Context) error { return mine }); err != mine {
		s.Errorf("with an error meanwhile: %v", err)
	}
	s.moves(read)
	if err := w.WriteRoot(s.ctx, failing{mine}, nil); !errors.Is(err, mine) {
		s.Errorf("with a writer that fails: %v", err)
	}
	s.moves(read)
	ctx, cancel := context.WithCancel(s.ctx)
	err := w.WriteRoot(ctx, io.Discard, func(context.Context) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		s.Errorf("canceled: %v", err)
	}
	s.moves(read)
	s.alive(i)
}

// testWriteRootWhenCallerDies checks that an instance that a dead daemon paused to write its root
// looks paused to the next daemon.
func testWriteRootWhenCallerDies(s *suite) {
	i, read := s.counting()
	err := s.rootWriter(i).WriteRoot(s.ctx, io.Discard, func(context.Context) error {
		r, err := s.New(s, s.stateDir).Recover(s.ctx, i.State())
		if err != nil {
			return err
		}
		_, err = r.Dial(s.ctx)
		s.code("dial of a paused instance", err, api.CodeState)
		s.still(i, read)
		s.resume(s.pauser(r))
		s.moves(read)
		s.resume(s.pauser(r))
		s.alive(r)
		return nil
	})
	if err != nil {
		s.Fatalf("write root: %v (%v)", err, errors.Unwrap(err))
	}
	s.moves(read)
	s.alive(i)
}

// testWriteRootOfClosed also closes one whose root is being written.
func testWriteRootOfClosed(s *suite) {
	i, plan := s.create(nil)
	w := s.rootWriter(i)
	err := w.WriteRoot(s.ctx, io.Discard, func(context.Context) error {
		go s.close(i)
		<-i.Done()
		return nil
	})
	s.code("write root of an instance that is closed meanwhile", err, api.CodeSandboxLost)
	s.close(i)
	s.nothingLeft(plan)
	s.code("write root of a closed instance", w.WriteRoot(s.ctx, io.Discard, nil), api.CodeSandboxLost)
}

// testRootLayer: what one instance changed in its root, another begins with.
func testRootLayer(s *suite) {
	odd := "/etc/odd \xff\nname"
	i, _ := s.create(nil)
	w := s.rootWriter(i)
	s.exec(i, Inside, "write", "/etc/added", "new")
	s.exec(i, Inside, "write", odd, "odd")
	s.exec(i, Inside, "chmod", "/etc/added", "711")
	var out bytes.Buffer
	if err := w.WriteRoot(s.ctx, &out, nil); err != nil {
		s.Fatalf("write root: %v (%v)", err, errors.Unwrap(err))
	}
	names := s.layer(out.Bytes())
	if h := names["./etc/added"]; h == nil || h.Size != 3 || h.Mode != 0o711 {
		s.Errorf("of the added file the layer says %+v", h)
	}
	path := filepath.Join(s.TempDir(), "upper.tar")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		s.Fatal(err)
	}
	j, _ := s.create(func(p *engine.Plan) { p.ID, p.Root.Upper = "restored", path })
	if got := s.exec(j, Inside, "cat", "/etc/added"); got != "new" {
		s.Errorf("the added file holds %q", got)
	}
	if got := s.exec(j, Inside, "cat", odd); got != "odd" {
		s.Errorf("the file with the odd name holds %q", got)
	}
	s.exec(j, Inside, "write", "/etc/added", "later")
	if got := s.exec(i, Inside, "cat", "/etc/added"); got != "new" {
		s.Errorf("the first instance sees %q of the second", got)
	}
}

// layer reads the tar of a root.
func (s *suite) layer(b []byte) map[string]*tar.Header {
	s.Helper()
	names := map[string]*tar.Header{}
	for t := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			s.Fatalf("the layer is no tar: %v", err)
		}
		if !strings.HasPrefix(h.Name, "./") {
			s.Errorf("the layer names %q", h.Name)
		}
		names[h.Name] = h
	}
	if h := names["./"]; h == nil || h.Typeflag != tar.TypeDir {
		s.Errorf("the layer has no root: %v", h)
	}
	return names
}

// failing fails every write.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
