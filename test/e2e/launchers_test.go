//go:build linux

package e2e_test

import (
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

// launched is an MCP server that a launcher fetches from an index and runs.
type launched struct {
	name string
	argv []string
	env  map[string]string
	// tool is called with args, and its answer has want in it.
	tool string
	args map[string]any
	want string
}

// launchedServers are those of the protocol's own project, by the launchers that their
// documentation names.
var launchedServers = []launched{
	{
		name: "uvx", argv: []string{"/opt/uv/uvx", "mcp-server-time", "--local-timezone", "UTC"},
		env: map[string]string{
			"UV_DEFAULT_INDEX": "http://" + api.DefaultEndpointListen + "/simple/", "UV_PYTHON": "/usr/bin/python3", "UV_PYTHON_DOWNLOADS": "never",
		},
		tool: "convert_time", args: map[string]any{"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}, want: "-9.0h",
	},
	{
		name: "npx", argv: []string{"npx", "--yes", mcpServer, "stdio"},
		env:  map[string]string{"npm_config_registry": "http://" + api.DefaultEndpointListen + "/npm/"},
		tool: "echo", args: map[string]any{"message": "said inside"}, want: "said inside",
	},
}

// TestLaunchedMCPServers has agents' usual launchers fetch MCP servers from an index on
// the host and run them, on every engine: the sandbox has no network and a root that
// is read-only, and what the launchers write is in HOME and /tmp.
func TestLaunchedMCPServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it starts sandboxes on every engine")
	}
	index, uv := packagesToLaunch(t)
	served := httptest.NewServer(index)
	t.Cleanup(served.Close)
	fixture.OnEngines(t, func(t *testing.T, engine, _ string) { launchOn(t, engine, served.URL, uv) })
}

// packagesToLaunch fetches the servers with all that they need, and is the index that has them
// and the directory of uv.
func packagesToLaunch(t *testing.T) (*packageIndex, string) {
	t.Helper()
	dir := t.TempDir()
	for _, argv := range [][]string{
		{"/usr/bin/pip3", "download", "-q", "--disable-pip-version-check", "--only-binary=:all:", "-d", filepath.Join(dir, "wheels"), "mcp-server-time"},
		{"/usr/bin/pip3", "install", "-q", "--disable-pip-version-check", "--root-user-action", "ignore", "--target", filepath.Join(dir, "uv"), "uv"},
		{"npm", "install", "--prefix", filepath.Join(dir, "npm"), "--no-audit", "--no-fund", "--ignore-scripts", mcpServer},
	} {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs packages to launch: %s: %v\n%s", strings.Join(argv, " "), err, out)
		}
	}
	index, err := newPackageIndex(filepath.Join(dir, "wheels"), filepath.Join(dir, "npm", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	return index, filepath.Join(dir, "uv", "bin")
}

// launchOn runs each server on an engine.
func launchOn(t *testing.T, engine, index, uv string) {
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, server := range launchedServers {
		t.Run(server.name, func(t *testing.T) {
			sb, err := c.Create(t.Context(), api.SandboxSpec{
				Engine: engine, Network: api.NetworkNone, ReadOnlyRoot: new(true),
				Mounts:    []api.Mount{{Source: uv, Target: "/opt/uv", ReadOnly: true}},
				Endpoints: []api.Endpoint{{Name: "index", Target: index}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sb.Remove(t.Context()) }()
			spec := api.ProcessSpec{OpenStdin: true}
			spec.ExecID, spec.Argv, spec.Env = "server", server.argv, server.env
			if _, err := sb.StartProcess(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			a, err := sb.Attach(t.Context(), "server", api.AttachRequest{Exclusive: true, Since: new(int64(0))})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			session, err := mcp.NewClient(&mcp.Implementation{Name: "cloche-test", Version: "1"}, nil).
				Connect(t.Context(), &mcp.IOTransport{Reader: stdoutOf(a), Writer: stdinOf{a}}, nil)
			if err != nil {
				said, _ := h.Try("logs", sb.ID, "server")
				t.Fatalf("%v\n%s", err, said)
			}
			defer session.Close()
			r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: server.tool, Arguments: server.args})
			if err != nil || r.IsError || len(r.Content) == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if text, ok := r.Content[0].(*mcp.TextContent); !ok || !strings.Contains(text.Text, server.want) {
				t.Errorf("%+v, want %q in it", r.Content[0], server.want)
			}
		})
	}
	h.Left()
}
