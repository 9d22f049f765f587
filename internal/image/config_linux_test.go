package image

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cloche-dev/cloche/api"
)

// TestConfigurations: a configuration says what platform it is for and what layers it
// has, and its environment is one that a program can be started with.
func TestConfigurations(t *testing.T) {
	id := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}
	good := func() v1.ConfigFile {
		return v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{id}}}
	}
	env := func(n, size int) []string { return slices.Repeat([]string{strings.Repeat("v", size)}, n) }
	for what, c := range map[string]struct {
		change func(c *v1.ConfigFile)
		code   api.Code
		words  []string
	}{
		"good":                    {change: func(*v1.ConfigFile) {}},
		"no system":               {func(c *v1.ConfigFile) { c.OS = "" }, api.CodeInvalid, []string{"does not say what platform"}},
		"no architecture":         {func(c *v1.ConfigFile) { c.Architecture = "" }, api.CodeInvalid, []string{"does not say what platform"}},
		"another system":          {func(c *v1.ConfigFile) { c.OS = "windows" }, api.CodeUnsupported, []string{"windows/amd64", "linux/amd64"}},
		"another architecture":    {func(c *v1.ConfigFile) { c.Architecture = "arm64" }, api.CodeUnsupported, []string{"linux/arm64"}},
		"no layers":               {func(c *v1.ConfigFile) { c.RootFS.DiffIDs = nil }, api.CodeInvalid, []string{"knows 0 layers and its manifest 1"}},
		"more layers":             {func(c *v1.ConfigFile) { c.RootFS.DiffIDs = []v1.Hash{id, id} }, api.CodeInvalid, []string{"knows 2 layers and its manifest 1"}},
		"a layer by another hash": {func(c *v1.ConfigFile) { c.RootFS.DiffIDs[0].Algorithm = "sha512" }, api.CodeInvalid, nil},
		"as many variables":       {change: func(c *v1.ConfigFile) { c.Config.Env = env(maxEnv, 1) }},
		"more variables":          {func(c *v1.ConfigFile) { c.Config.Env = env(maxEnv+1, 1) }, api.CodeTooLarge, []string{"more than"}},
		"the longest variable":    {change: func(c *v1.ConfigFile) { c.Config.Env = env(1, maxVarBytes-1) }},
		"a longer variable":       {func(c *v1.ConfigFile) { c.Config.Env = env(1, maxVarBytes) }, api.CodeTooLarge, []string{"too long"}},
		"as many bytes":           {change: func(c *v1.ConfigFile) { c.Config.Env = env(16, maxEnvBytes/16-1) }},
		"more bytes": {func(c *v1.ConfigFile) {
			c.Config.Env = append(env(15, maxEnvBytes/16-1), strings.Repeat("v", maxEnvBytes/16))
		}, api.CodeTooLarge, []string{"too long"}},
	} {
		t.Run(what, func(t *testing.T) {
			config := good()
			c.change(&config)
			body, err := json.Marshal(config)
			must(t, err)
			got, err := parseConfig("app", body, v1.Platform{OS: "linux", Architecture: "amd64"}, 1)
			if c.code != "" {
				e := wantError(t, err, c.code, false, c.words...)
				if c.code == api.CodeUnsupported && (e.Field != "image" || !strings.Contains(e.Hint, "use an image for linux/amd64")) {
					t.Errorf("field %q, hint %q", e.Field, e.Hint)
				}
			} else if err != nil || got.OS != "linux" {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	if _, err := parseConfig("app", []byte("{"), v1.Platform{}, 0); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("no JSON: %v", err)
	}
	if e := wantError(t, wrongPlatform("app", "linux/amd64", ""), api.CodeUnsupported, false, "is for no platform"); e.Field != "image" {
		t.Errorf("field %q", e.Field)
	}
}

// TestWhatIsKeptOfAConfiguration: all that starts a program is kept, and when the image
// was made, unless that is not said.
func TestWhatIsKeptOfAConfiguration(t *testing.T) {
	c := &v1.ConfigFile{Config: v1.Config{
		Env: []string{"A=b"}, User: "7", WorkingDir: "/w", Entrypoint: []string{"e"}, Cmd: []string{"c"}, Labels: map[string]string{"l": "v"}, StopSignal: "SIGINT",
	}}
	got, err := json.Marshal(keepConfig(c))
	must(t, err)
	want, err := json.Marshal(api.ImageConfig{
		Env: []string{"A=b"}, User: "7", WorkingDir: "/w", Entrypoint: []string{"e"}, Cmd: []string{"c"}, Labels: map[string]string{"l": "v"}, StopSignal: "SIGINT",
	})
	must(t, err)
	if string(got) != string(want) {
		t.Errorf("kept is %s, want %s", got, want)
	}
	if at := created(c); at != nil {
		t.Errorf("it was made at %s", at)
	}
	c.Created = v1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))}
	if at := created(c); at == nil || !at.Equal(c.Created.Time) || at.Location() != time.UTC {
		t.Errorf("it was made at %v", at)
	}
	env := environment(api.ImageConfig{Env: []string{"A=b=c", "=x", "none", "Z=\x00", "E="}})
	if want := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "A": "b=c", "E": ""}; !maps.Equal(env, want) {
		t.Errorf("the environment is %q", env)
	}
}

// TestPlatformNames: a platform is linux, an architecture and perhaps a variant.
func TestPlatformNames(t *testing.T) {
	for text, want := range map[string]string{
		"": "linux/" + runtime.GOARCH, "linux/arm64": "linux/arm64", "linux/arm/v7": "linux/arm/v7",
		"linux/" + strings.Repeat("a", 58): "linux/" + strings.Repeat("a", 58), "linux/" + strings.Repeat("a", 59): "",
		"linux": "", "linux/": "", "/amd64": "", "windows/amd64": "", "linux/a/b/c": "",
	} {
		got, err := platform(text)
		if want == "" {
			if e := wantError(t, err, api.CodeInvalid, false); e.Hint == "" || e.Field != "platform" {
				t.Errorf("%q: %+v", text, e)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for platform, here := range map[string]bool{
		"linux/" + runtime.GOARCH: true, "linux/" + runtime.GOARCH + "/v8": true, "linux/" + runtime.GOARCH + "2": false, "linux/s390x": false, "": false,
	} {
		if forThisMachine(platform) != here {
			t.Errorf("%q is for this machine: %v", platform, !here)
		}
	}
}

// TestListsOfPlatforms: a document is a list by its type, by what it lists, or by having
// neither layers nor a configuration.
func TestListsOfPlatforms(t *testing.T) {
	one := []v1.Descriptor{{Digest: v1.Hash{Algorithm: "sha256", Hex: "aa"}}}
	for i, c := range []struct {
		d     document
		index bool
	}{
		{document{MediaType: types.OCIImageIndex, Layers: one}, true},
		{document{Manifests: one}, true},
		{document{}, true},
		{document{Layers: one}, false},
		{document{Config: one[0]}, false},
		{document{MediaType: types.OCIManifestSchema1, Config: one[0], Layers: one}, false},
	} {
		if got := c.d.isIndex(); got != c.index {
			t.Errorf("%s: a list: %v", fmt.Sprint(i), got)
		}
	}
}
