package httpapi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

// TestNoLogWithoutADaemon: in the process of its caller the error has the cause itself, and
// the hint names no log; over a socket it is the other way round.
func TestNoLogWithoutADaemon(t *testing.T) {
	fault := func() error {
		return api.Errorf(api.CodeInternal, "create sandbox: the kernel refused to start").
			WithHint("the daemon's log has the details; cloche doctor tells what this machine lacks").WithCause(errors.New("no such thing"))
	}
	own := httpapi.ToWire(fault(), core.InProcessCaller(0))
	if own.Message != "create sandbox: the kernel refused to start: no such thing" || own.Hint != "cloche doctor tells what this machine lacks" {
		t.Errorf("in process: %q, %q", own.Message, own.Hint)
	}
	if e := httpapi.ToWire(errors.New("odd"), core.InProcessCaller(0)); strings.Contains(e.Hint, "log") {
		t.Errorf("in process: %q, %q", e.Message, e.Hint)
	}
	daemon := httpapi.ToWire(fault(), core.UnixCaller(0, 0))
	if strings.Contains(daemon.Message, "no such thing") || !strings.Contains(daemon.Hint, "the daemon's log has the details") {
		t.Errorf("over a socket: %q, %q", daemon.Message, daemon.Hint)
	}
}
