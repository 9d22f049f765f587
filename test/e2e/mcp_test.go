//go:build linux

package e2e_test

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

// mcpServer is the reference server of the protocol's own project.
const mcpServer = "@modelcontextprotocol/server-everything@2026.8.31"

// TestMCPServerOutlivesTheDaemon runs a real MCP server as a managed process and
// speaks to it with the official SDK, through an exclusive attach: before the
// daemon is killed and after it has come back, in one session of the protocol.
func TestMCPServerOutlivesTheDaemon(t *testing.T) {
	longtest.Skip(t, "it fetches a package and starts sandboxes")
	dir := t.TempDir()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node: the server is a program for it")
	}
	install := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", mcpServer)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("needs the server's package: npm install %s: %v\n%s", mcpServer, err, out)
	}
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	sb, err := c.Create(ctx, api.SandboxSpec{Name: "mcp", Workspace: &api.Workspace{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Try("rm", "-f", "mcp")
	spec := api.ProcessSpec{OpenStdin: true}
	spec.ExecID = "everything"
	spec.Argv = []string{node, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"}
	if _, err := sb.StartProcess(ctx, spec); err != nil {
		t.Fatal(err)
	}
	// Attached before it has said a word.
	a, err := sb.Attach(ctx, "everything", api.AttachRequest{Exclusive: true, Since: new(int64(0))})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := sb.Attach(ctx, "everything", api.AttachRequest{Exclusive: true}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second exclusive attach: %v, want a conflict", err)
	}
	if _, err := sb.WriteStdin(ctx, "everything", nil, strings.NewReader("{}\n"), false); !errors.Is(err, api.ErrConflict) {
		t.Errorf("input beside an exclusive attach: %v, want a conflict", err)
	}

	session, err := mcp.NewClient(&mcp.Implementation{Name: "cloche-test", Version: "1"}, nil).
		Connect(ctx, &mcp.IOTransport{Reader: stdoutOf(a), Writer: stdinOf{a}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	ask := func(when, message string) {
		t.Helper()
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": message}})
		if err != nil || r.IsError || len(r.Content) == 0 {
			t.Fatalf("%s: %+v, %v", when, r, err)
		}
		if text, ok := r.Content[0].(*mcp.TextContent); !ok || !strings.Contains(text.Text, message) {
			t.Fatalf("%s: %+v", when, r.Content[0])
		}
	}
	tools, err := session.ListTools(ctx, nil)
	if err != nil || len(tools.Tools) == 0 {
		t.Fatalf("tools: %+v, %v", tools, err)
	}
	ask("before", "said before the daemon died")
	h.Kill9()
	h.Start()
	ask("after", "said after it came back")
	suspendAndResume(t, sb)
	ask("suspended", "said after a suspend")
	ask("a large message", strings.Repeat("x", 1<<20))

	p, err := sb.Process(ctx, "everything")
	if err != nil || !p.Running || p.Restarts != 0 || !p.Writer {
		t.Errorf("the server's record: %+v, %v", p, err)
	}
}

// stdoutOf is the output of an attached process without its error output.
func stdoutOf(a *client.Attachment) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		_, err := a.Copy(w, nil)
		_ = w.CloseWithError(err)
	}()
	return r
}

// stdinOf is its input; closing it leaves the process.
type stdinOf struct{ *client.Attachment }
