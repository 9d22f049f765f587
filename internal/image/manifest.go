package image

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxLayers bounds the layers of an image; builders stop at 127.
	maxLayers = 512
	// maxPlatforms bounds a list of platforms.
	maxPlatforms = 1024
	// maxEnv bounds the environment that an image asks for, and maxEnvBytes all of
	// it together. A variable of maxVarBytes is one that no program can be started
	// with.
	maxEnv      = 1024
	maxEnvBytes = 1 << 20
	maxVarBytes = 128 << 10
)

// platform is the platform that an image is wanted for: "os/arch" or
// "os/arch/variant"; empty is this machine's.
func platform(s string) (v1.Platform, error) {
	if s == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || len(s) > 64 || parts[0] != "linux" || parts[1] == "" {
		return v1.Platform{}, api.Invalid("platform", "platform %q does not exist for images", clip(s)).
			WithHint(`write it as "linux/amd64" or "linux/arm/v7"`)
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// document is a manifest or a list of manifests.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Manifests     []v1.Descriptor `json:"manifests"`
	Config        v1.Descriptor   `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
}

// parseManifest reads a manifest or an index.
func parseManifest(ref string, body []byte) (document, error) {
	var d document
	if err := json.Unmarshal(body, &d); err != nil {
		return d, api.Invalid("image", "image %q: its manifest cannot be read", ref).WithCause(err)
	}
	switch {
	case d.SchemaVersion == 1:
		return d, api.Errorf(api.CodeUnsupported, "image %q: its manifest has the form of 2015, without digests of what is in it", ref).
			WithHint("push it again with a present tool")
	case len(d.Manifests) > 0 && len(d.Layers) > 0:
		return d, api.Invalid("image", "image %q: its manifest is a list and an image at once", ref)
	case len(d.Manifests) > maxPlatforms || len(d.Layers) > maxLayers:
		return d, api.Errorf(api.CodeTooLarge, "image %q: its manifest lists more than %d platforms or %d layers", ref, maxPlatforms, maxLayers)
	}
	return d, nil
}

func (d document) isIndex() bool {
	return d.MediaType.IsIndex() || len(d.Manifests) > 0 || d.Config.Digest.Hex == "" && len(d.Layers) == 0
}

// choose finds the manifest for a platform.
func (d document) choose(ref string, want v1.Platform) (v1.Descriptor, error) {
	var offered []string
	var best *v1.Descriptor
	for i, m := range d.Manifests {
		if m.Platform == nil || m.Platform.OS == "unknown" || m.Platform.Architecture == "unknown" {
			continue // attestations and the like
		}
		offered = append(offered, m.Platform.String())
		if m.Platform.OS != want.OS || m.Platform.Architecture != want.Architecture {
			continue
		}
		if want.Variant != "" && m.Platform.Variant != want.Variant {
			continue
		}
		if best == nil || rank(*m.Platform) < rank(*best.Platform) {
			best = &d.Manifests[i]
		}
	}
	if best == nil && len(d.Manifests) == 1 && d.Manifests[0].Platform == nil {
		best = &d.Manifests[0] // what it is for stands in its configuration
	}
	if best == nil {
		return v1.Descriptor{}, wrongPlatform(ref, want.String(), strings.Join(offered[:min(len(offered), 12)], ", "))
	}
	return *best, nil
}

// rank prefers the variant that every machine of the architecture has.
func rank(p v1.Platform) int {
	switch {
	case p.Variant == "" || p.Architecture == "arm64" && p.Variant == "v8":
		return 0
	case p.Architecture == "amd64":
		return 2
	case p.Variant == "v7":
		return 1
	}
	return 2
}

func wrongPlatform(ref, want, have string) error {
	if have == "" {
		have = "no platform"
	}
	e := api.Errorf(api.CodeUnsupported, "image %q is for %s, and %s is wanted", ref, have, want).
		WithHint("use an image for %s; %s", want, AliasHint(ref))
	e.Field = "image"
	return e
}

// checkLayers refuses layers that this program cannot read, and returns them.
func (d document) checkLayers(ref string) ([]v1.Descriptor, error) {
	if !validHash(d.Config.Digest) || d.Config.Size <= 0 || d.Config.Size > maxConfigFile {
		return nil, api.Invalid("image", "image %q: its manifest names no configuration of 1 to %d bytes", ref, maxConfigFile)
	}
	for _, l := range d.Layers {
		switch l.MediaType {
		case types.DockerLayer, types.DockerUncompressedLayer, types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer:
		case types.DockerForeignLayer, types.OCIRestrictedLayer, types.OCIUncompressedRestrictedLayer:
			return nil, api.Errorf(api.CodeUnsupported, "image %q: a layer of it may not be distributed and is kept elsewhere", ref)
		default:
			return nil, api.Errorf(api.CodeUnsupported, "image %q: it has a layer of the type %q", ref, clip(string(l.MediaType))).
				WithHint("this is no image to run, or its layers are encrypted or in a form that Cloche does not read")
		}
		if !validHash(l.Digest) || l.Size < 0 {
			return nil, api.Invalid("image", "image %q: its manifest names a layer with the digest %q and %d bytes", ref, clip(l.Digest.String()), l.Size)
		}
	}
	return d.Layers, nil
}

func validHash(h v1.Hash) bool { return api.ValidDigest(h.String()) }

// parseConfig reads an image's configuration, which must be for a platform.
func parseConfig(ref string, body []byte, want v1.Platform, layers int) (*v1.ConfigFile, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(body))
	if err != nil {
		return nil, api.Invalid("image", "image %q: its configuration cannot be read", ref).WithCause(err)
	}
	if c.OS == "" || c.Architecture == "" {
		return nil, api.Invalid("image", "image %q: it does not say what platform it is for", ref).
			WithHint("build it again with a present tool, or import its files as a tar")
	}
	if c.OS != want.OS || c.Architecture != want.Architecture {
		return nil, wrongPlatform(ref, want.String(), clip(c.OS+"/"+c.Architecture))
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, api.Invalid("image", "image %q: its configuration knows %d layers and its manifest %d", ref, len(c.RootFS.DiffIDs), layers)
	}
	for _, id := range c.RootFS.DiffIDs {
		if !validHash(id) {
			return nil, api.Invalid("image", "image %q: its configuration names a layer %q", ref, clip(id.String()))
		}
	}
	if len(c.Config.Env) > maxEnv {
		return nil, api.Errorf(api.CodeTooLarge, "image %q: it sets more than %d variables", ref, maxEnv)
	}
	total := 0
	for _, line := range c.Config.Env {
		if total += len(line) + 1; len(line) >= maxVarBytes || total > maxEnvBytes {
			name, _, _ := strings.Cut(line, "=")
			return nil, api.Errorf(api.CodeTooLarge, "image %q: its environment is too long at the variable %q: no program could be started with it", ref, clip(name)).
				WithHint("a variable may have %d bytes and all of them together %d", maxVarBytes-1, maxEnvBytes)
		}
	}
	return c, nil
}

// keepConfig is what is kept of a configuration.
func keepConfig(c *v1.ConfigFile) api.ImageConfig {
	return api.ImageConfig{
		Env: c.Config.Env, User: c.Config.User, WorkingDir: c.Config.WorkingDir, Entrypoint: c.Config.Entrypoint,
		Cmd: c.Config.Cmd, Labels: c.Config.Labels, StopSignal: c.Config.StopSignal,
	}
}

func created(c *v1.ConfigFile) *time.Time {
	if c.Created.IsZero() {
		return nil
	}
	at := c.Created.UTC()
	return &at
}

// DefaultPath is the PATH of programs whose image sets none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is the environment of an image's processes.
func environment(c api.ImageConfig) map[string]string {
	env := map[string]string{"PATH": DefaultPath}
	for _, line := range c.Env {
		if key, value, ok := strings.Cut(line, "="); ok && key != "" && !strings.ContainsRune(line, 0) {
			env[key] = value
		}
	}
	return env
}
