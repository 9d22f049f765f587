//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
)

func TestRepeatableExec(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	s := shell("echo once >>" + dir + "/count; cat; echo err >&2; sleep 0.2; exit 3")
	s.Repeatable, s.Stdin = true, bytes.Repeat([]byte("in"), 100_000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			r, err := in.Exec(within(t, time.Minute), s)
			if err != nil || r.ExitStatus() != 3 || !bytes.Equal(r.Stdout, s.Stdin) || string(r.Stderr) != "err\n" {
				t.Errorf("%+v, %v", r.StdoutInfo, err)
			}
		})
	}
	wg.Wait()
	r, err := in.Exec(t.Context(), s)
	if err != nil || !bytes.Equal(r.Stdout, s.Stdin) {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(dir + "/count"); string(data) != "once\n" {
		t.Fatalf("%q", data)
	}
	other := s
	other.Stdin = nil
	if _, err := in.Exec(t.Context(), other); !errors.Is(err, api.ErrExists) {
		t.Fatal(err)
	}
	// A start that failed leaves the id free.
	bad := start("/no/such")
	bad.Repeatable = true
	for range 2 {
		if _, err := in.Exec(t.Context(), bad); api.CodeOf(err) != api.CodeCommandNotFound {
			t.Fatal(err)
		}
	}
	// The oldest results give way.
	for range process.MaxRepeats {
		x := shell(":")
		x.Repeatable = true
		if _, err := in.Exec(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Exec(t.Context(), s); !errors.Is(err, api.ErrExists) {
		t.Fatal(err)
	}
}

func TestRepeatAfterALostCallBringsTheInput(t *testing.T) {
	in := boot(t, nil)
	begun, lost := fifo(t), fifo(t)
	s := shell("echo >$1; read x <$2; exec wc -c")
	s.Argv = append(s.Argv, "sh", begun.Name(), lost.Name())
	s.Repeatable, s.Stdin = true, make([]byte, 2<<20)
	c := in.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = begun.Read(make([]byte, 1))
		cancel() // it reads nothing yet, and its pipe holds a part of the input
	})
	_, err := c.Exec(ctx, s)
	if err == nil {
		t.Fatal("the first call was not lost")
	}
	wg.Wait()
	c.Close()
	if _, err := lost.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	r, err := in.Exec(within(t, time.Minute), s)
	if err != nil || strings.TrimSpace(string(r.Stdout)) != fmt.Sprint(2<<20) {
		t.Fatalf("%q, %v", r.Stdout, err)
	}
}
