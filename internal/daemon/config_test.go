package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/daemon"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestConfigure(t *testing.T) {
	home := t.TempDir()
	write(t, filepath.Join(home, "settings.yaml"), "listen: [tcp://127.0.0.1:1]\nlog: {level: warn}\nhosts: [box.example, '*.example.org']\ntls: {cert: /no.pem, key: /k.pem}\n")
	write(t, filepath.Join(home, "policy.yaml"), "max_sandboxes: 3\n")
	c, err := daemon.Configure(daemon.ConfigInput{
		Flags: map[string][]string{"home": {home}, "log.format": {"json"}}, DefaultHome: "/nowhere",
		Environ: []string{"CLOCHE_HOME=/other", "CLOCHE__LISTEN=unix:///a, unix:///b", "CLOCHE_TOKEN=hunter2", "CLOCHE__TLS__CERT=/c.pem", "CLOCHE__POLICY__MAX_SANDBOXES=9", "CLOCHE__NOPE=1", "CLOCHE__POLICY__NOPE=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Config; got.Home != home || strings.Join(got.Listen, " ") != "unix:///a unix:///b" || got.Token != "hunter2" || !got.LogJSON || got.LogLevel.String() != "WARN" {
		t.Errorf("configured %+v", got)
	}
	if got := strings.Join(c.Warnings, "; "); got != "CLOCHE__NOPE names no setting; CLOCHE__POLICY__NOPE names no setting" {
		t.Errorf("warned of %q", got)
	}
	shown, err := c.Show()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range shown {
		lines = append(lines, fmt.Sprint(s.Key, "=", s.Value, " ", s.Source))
	}
	want := strings.Join([]string{
		"home=" + home + " flag", "settings_file=" + filepath.Join(home, "settings.yaml") + " default", "policy_file=" + filepath.Join(home, "policy.yaml") + " default",
		"listen=[unix:///a unix:///b] environment", "token=set environment", "hosts=[box.example *.example.org] file", "origins= default", "tls.cert=/c.pem environment", "tls.key=/k.pem file", "log.format=json flag", "log.level=warn file",
		"docker.host= default", "docker.certs= default", "docker.runtime= default", "docker.runtime_tier=namespace default",
		"docker.shares_host_fs=auto default",
		"podman.host= default", "podman.runtime= default", "podman.runtime_tier=namespace default",
		"podman.shares_host_fs=auto default", "box.listen= default", "e2b.listen= default", "e2b.profile= default", "e2b.allow= default", "e2b.domain= default", "e2b.api_key=unset default", "e2b.api_url= default", "e2b.sandbox_url= default", "e2b.template= default", "e2b.lifetime=1h0m0s default", "e2b.network_off=confirmed default", "e2b.host_mounts=no default", "ports.listen= default", "ports.url= default", "ports.tls.cert= default", "ports.tls.key= default", "oci.runtime= default",
		"nsjail.path= default", "pool.floor=0 default", fmt.Sprintf("pool.ceiling=%d default", daemon.DefaultPoolCeiling), fmt.Sprintf("pool.memory=%d default", min(512<<20, hostfile.Memory()/32)), "checkpoints.key_file= default", "checkpoints.compress_after=10m0s default", fmt.Sprintf("memory.available=%d default", min(1<<30, hostfile.Memory()/16)), fmt.Sprintf("max_starting=%d default", policy.DefaultStarting()), fmt.Sprintf("max_queued=%d default", policy.DefaultQueued),
		"deadlines.call=1m0s default", "deadlines.change=2m0s default", "deadlines.work=45m0s default", "deadlines.transfer=5m0s default", "deadlines.agent=1m0s default", "policy.max_sandboxes=9 environment",
	}, "\n")
	if got := strings.Join(lines, "\n"); got != want || strings.Contains(got, "hunter2") {
		t.Errorf("shown\n%s\nwant\n%s", got, want)
	}
}

func TestConfigureNothing(t *testing.T) {
	home := filepath.Join(t.TempDir(), "none")
	c, err := daemon.Configure(daemon.ConfigInput{DefaultHome: home})
	if err != nil || c.Config.Home != home || len(c.Config.Listen) != 0 || len(c.Warnings) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(home); !os.IsNotExist(err) {
		t.Errorf("to look made the home: %v", err)
	}
	shown, err := c.Show()
	if err != nil || shown[4].Value != "unset" || fmt.Sprint(shown[3].Value) != "[unix://"+home+"/cloche.sock]" {
		t.Errorf("%+v, %v", shown, err)
	}
}

// TestConfigureRefuses what a daemon could not start with, naming the key.
func TestConfigureRefuses(t *testing.T) {
	dir := t.TempDir()
	settings := filepath.Join(dir, "s.yaml")
	for name, tc := range map[string]struct {
		file, env string
		says      string
	}{
		"unknown key":    {file: "listne: [a]", says: "line 1, column 1: listne"},
		"rules":          {file: "max_sandboxes: 1", says: "rules are in the policy file"},
		"a token":        {file: "token: hunter2", says: "token"},
		"bad level":      {env: "CLOCHE__LOG__LEVEL=loud", says: "log.level"},
		"bad format":     {file: "log: {format: xml}", says: "log.format"},
		"no such file":   {env: "CLOCHE__SETTINGS_FILE=" + dir + "/none", says: "settings file"},
		"a directory":    {env: "CLOCHE__SETTINGS_FILE=" + dir, says: "regular"},
		"no host name":   {file: "hosts: ['*']", says: `hosts, from the file, is "*"`},
		"a path":         {file: "hosts: [box.example/x]", says: "hosts"},
		"any origin":     {file: "origins: ['*']", says: "origins"},
		"origin's path":  {file: "origins: [https://box.example/]", says: "origins"},
		"half of TLS":    {file: "tls: {cert: /c.pem}", says: "tls.key is missing"},
		"other half":     {file: "tls: {key: /c.pem}", says: "tls.cert is missing"},
		"negative quota": {env: "CLOCHE__POLICY__MAX_SANDBOXES=-1", says: "CLOCHE__POLICY__MAX_SANDBOXES: max_sandboxes is -1"},
		"no number":      {env: "CLOCHE__POLICY__MAX_WORKSPACES_PER_TENANT=ten", says: "max_workspaces_per_tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, settings, tc.file)
			environ := []string{tc.env}
			if !strings.Contains(tc.env, "SETTINGS_FILE") {
				environ = append(environ, "CLOCHE__SETTINGS_FILE="+settings)
			}
			c, err := daemon.Configure(daemon.ConfigInput{DefaultHome: filepath.Join(dir, "home"), Environ: environ})
			if err == nil {
				_, err = c.Rules.Load()
			}
			if api.CodeOf(err) != api.CodeInvalid || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v", err)
			}
		})
	}
}
