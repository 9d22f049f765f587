package api

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Image is a root filesystem that a create can name.
type Image struct {
	// Name is the shortest name that requests can use, such as "host" or "python:3.11".
	Name string `json:"name"`
	// Digest is the digest of the manifest for this platform. An image without a manifest has the
	// digest of its configuration.
	Digest string `json:"digest,omitempty"`
	// SizeBytes is the disk space that it uses below the home directory. It is 0 for host.
	SizeBytes   int64  `json:"size_bytes"`
	Description string `json:"description,omitempty"`
	// IndexDigest is the digest of the multi-platform index that the manifest was selected from.
	// A reference pinned to this digest is this image.
	IndexDigest string `json:"index_digest,omitempty"`
	// Platform is a platform such as "linux/amd64".
	Platform string `json:"platform,omitempty"`
	// Source says where the image came from: "registry", "oci", "docker-archive", "tar",
	// "directory", "build".
	Source string `json:"source,omitempty"`
	// Config is the image's run configuration.
	Config *ImageConfig `json:"config,omitempty"`
	Layers []ImageLayer `json:"layers,omitempty"`
	// Notes say which parts of the image could not be kept.
	Notes     []string   `json:"notes,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	PulledAt  *time.Time `json:"pulled_at,omitempty"`
	// UsedAt is when it was last used, with a resolution of one hour.
	UsedAt *time.Time `json:"used_at,omitempty"`
}

// ImageConfig is the part of an image's configuration that Cloche supports.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	// Entrypoint and Cmd together are the default command of a run. They are never put before a
	// command that the caller gives.
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
}

// Command returns the default command of a run. It is empty if the image has none.
func (c ImageConfig) Command() []string {
	return append(append([]string(nil), c.Entrypoint...), c.Cmd...)
}

// ImageLayer is one layer of an image, lowest first.
type ImageLayer struct {
	// Digest is the digest of the layer as it was transferred.
	Digest string `json:"digest,omitempty"`
	// DiffID is the digest of the uncompressed tar.
	DiffID    string `json:"diff_id"`
	SizeBytes int64  `json:"size_bytes"`
}

// ImageList is the answer of GET /v1/images.
type ImageList struct {
	Images []Image `json:"images"`
}

// PullPolicy says when an image is pulled.
type PullPolicy string

// Pull policies.
const (
	PullMissing PullPolicy = "missing" // when it is missing here
	PullNever   PullPolicy = "never"
	PullAlways  PullPolicy = "always" // even if it exists here, to get a newer version
)

// PullRequest pulls an image from its registry.
type PullRequest struct {
	Image string `json:"image"`
	// Platform is a platform such as "linux/amd64". Empty is this machine's platform.
	Platform string `json:"platform,omitempty"`
}

// PullPhase is a phase of a pull.
type PullPhase string

// Phases of a pull. Download and Unpack are reported for each layer and overlap.
const (
	PullResolve  PullPhase = "resolve"
	PullWait     PullPhase = "wait" // for another pull of the same image
	PullDownload PullPhase = "download"
	PullUnpack   PullPhase = "unpack"
	PullWrite    PullPhase = "write"
	PullDone     PullPhase = "done"
)

// PullProgress is the progress of a pull.
type PullProgress struct {
	Image string    `json:"image"`
	Phase PullPhase `json:"phase"`
	// Layer is the digest of the layer that the numbers belong to.
	Layer string `json:"layer,omitempty"`
	// Bytes of TotalBytes have been transferred. Both are 0 if there is nothing to count.
	Bytes      int64 `json:"bytes,omitempty"`
	TotalBytes int64 `json:"total_bytes,omitempty"`
}

// ImageFormat is the format of an archive that contains an image.
type ImageFormat string

// Formats of an import. Each can be compressed.
const (
	FormatOCIArchive    ImageFormat = "oci-archive"    // a tar of an OCI layout
	FormatDockerArchive ImageFormat = "docker-archive" // what `docker save` writes
	FormatTar           ImageFormat = "tar"            // a root filesystem
)

// ImportOptions configures the import of an archive as an image.
type ImportOptions struct {
	// Name is the name of the new image. Empty is the name in the archive.
	Name string
	// Format is the required format. Empty detects it.
	Format ImageFormat
	// Ref selects one image of an archive with several, by its name in the archive.
	Ref string
	// Platform is a platform such as "linux/amd64". Empty is the daemon's platform.
	Platform string
}

// ImagePackRequest builds an image from programs of the daemon's machine.
type ImagePackRequest struct {
	Name string `json:"name"`
	// Paths are absolute paths: programs, which are copied with their libraries and interpreters,
	// and directories, which are copied completely.
	Paths []string `json:"paths"`
	// Config is the run configuration of the new image.
	Config *ImageConfig `json:"config,omitempty"`
}

// ImagePruneRequest removes unused images to free disk space.
type ImagePruneRequest struct {
	// MaxBytes is how much disk space images can use afterwards. 0 keeps only images in use, and
	// nil is the operator's limit.
	MaxBytes *int64 `json:"max_bytes,omitempty"`
	// DryRun reports what would be removed and removes nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// ImagePruneResult is the result of a prune.
type ImagePruneResult struct {
	// Removed lists the images that were removed, least recently used first.
	Removed []Image `json:"removed"`
	// FreedBytes also counts layers that were kept to make a later pull faster.
	FreedBytes int64 `json:"freed_bytes"`
	// UsedBytes is the disk space that images and such layers use now.
	UsedBytes int64 `json:"used_bytes"`
}

// DefaultRegistry is the registry of a reference that does not name one.
const DefaultRegistry = "docker.io"

// ImageRef is a reference to an OCI image, with every default filled in.
type ImageRef struct {
	// Registry is a host, with a port if the reference has one.
	Registry string
	// Repository is the path in the registry, such as "library/python".
	Repository string
	// Tag is empty only if Digest is set.
	Tag string
	// Digest is "sha256:" and 64 hexadecimal digits, or empty.
	Digest string
}

const (
	refHost   = `(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?`
	refPart   = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	maxRef    = 512
	maxRepo   = 255
	digestLen = len("sha256:") + 64
)

// The patterns are compiled on first use: the agent in each sandbox also contains this package and
// never uses images.
var (
	refHostPattern = pattern(`^` + refHost + `$`)
	refNamePattern = pattern(`^` + refPart + `(?:/` + refPart + `)*$`)
	refTagPattern  = pattern(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// ErrHostImage is the cause of an error about a reference that adds a tag, a digest or a registry
// to DefaultImage.
var ErrHostImage = errors.New("the host image is in no registry")

// ParseImageRef parses a reference in its usual forms: "python", "python:3.11",
// "ghcr.io/owner/name@sha256:…". An error is CodeInvalid with the field "image". DefaultImage is
// not a reference, and no reference names it, so a parsed reference can always be sent to its
// registry.
func ParseImageRef(s string) (ImageRef, error) {
	bad := func(why string) (ImageRef, error) {
		shown := s
		if len(shown) > 128 {
			shown = shown[:128] + "…"
		}
		return ImageRef{}, Invalid("image", "image %q is no reference: %s", shown, why).
			WithHint(`write it as "python:3.11", "registry.example/team/name:tag" or "name@sha256:…"`)
	}
	if s == "" || len(s) > maxRef {
		return bad("it must have 1 to 512 characters")
	}
	var r ImageRef
	name, digest, pinned := strings.Cut(s, "@")
	if pinned {
		if !ValidDigest(digest) {
			return bad(`its digest must be "sha256:" and 64 of 0-9a-f`)
		}
		r.Digest = digest
	}
	if host, rest, ok := strings.Cut(name, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost" || host != strings.ToLower(host)) {
		if !refHostPattern().MatchString(host) {
			return bad("what stands before the first / is no registry's name")
		}
		r.Registry, name = strings.ToLower(host), rest
		if r.Registry != "localhost" && !strings.ContainsAny(host, ".:") {
			return bad("a registry's name has a dot or a port, and any other name is of small letters")
		}
	}
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		if r.Tag = name[i+1:]; !refTagPattern().MatchString(r.Tag) {
			return bad("its tag must have 1 to 128 letters, digits and _.-")
		}
		name = name[:i]
	}
	if !refNamePattern().MatchString(name) {
		return bad("its name must be of small letters and digits, with . _ - and / between them")
	}
	if r.Registry == "" && ValidDigest("sha256:"+name) {
		return bad("64 digits alone could be a digest too")
	}
	switch r.Registry {
	case "", "index.docker.io", "registry-1.docker.io":
		r.Registry = DefaultRegistry
	}
	if r.Registry == DefaultRegistry && !strings.Contains(name, "/") {
		name = "library/" + name
	}
	if r.Registry == DefaultRegistry && name == "library/"+DefaultImage {
		return ImageRef{}, Invalid("image", "image %q: %q is this machine's own tools as they are now; it has no tags or digests and is in no registry", s, DefaultImage).
			WithHint("write %q alone", DefaultImage).WithCause(ErrHostImage)
	}
	r.Repository = name
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	// Check the limits on the full reference.
	if len(r.Repository) > maxRepo || len(r.String()) > maxRef {
		return bad("in full it must have at most 512 characters, and 255 in its name")
	}
	return r, nil
}

// ValidDigest reports whether s is "sha256:" followed by 64 of 0-9a-f.
func ValidDigest(s string) bool {
	return len(s) == digestLen && strings.HasPrefix(s, "sha256:") && strings.Trim(s[len("sha256:"):], "0123456789abcdef") == ""
}

// String returns the full reference. Two references to the same image in the same registry have the
// same text.
func (r ImageRef) String() string { return r.Registry + "/" + r.Repository + r.suffix() }

// Familiar returns the short form of the reference, such as "python:3.11".
func (r ImageRef) Familiar() string {
	if r.Registry != DefaultRegistry {
		return r.String()
	}
	for _, repository := range []string{strings.TrimPrefix(r.Repository, "library/"), r.Repository} {
		short := repository + r.suffix()
		if back, err := ParseImageRef(short); err == nil && back == r {
			return short
		}
	}
	return r.String()
}

func (r ImageRef) suffix() string {
	s := ""
	if r.Tag != "" {
		s = ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// BuiltRegistry is the registry in the names of images that were built here, such as
// cloche.local/TENANT/NAME. Nothing is pulled from it.
const BuiltRegistry = "cloche.local"

// ImageBuildRequest says how to build an image from a Dockerfile or from a list of packages. The files that
// COPY copies are sent beside it.
type ImageBuildRequest struct {
	// Name is the name of the image. Callers other than the operator build images of their own tenant,
	// cloche.local/TENANT/NAME.
	Name string `json:"name"`
	// Dockerfile is the text of the Dockerfile. Empty needs Packages.
	Dockerfile string `json:"dockerfile,omitempty"`
	// Packages is a list of packages instead of a Dockerfile.
	Packages *ImagePackages `json:"packages,omitempty"`
	// Target is the name or the index of the stage to build. Empty is the last one.
	Target string `json:"target,omitempty"`
	// Args are the values of ARG.
	Args map[string]string `json:"args,omitempty"`
	// Labels are added to the image's labels.
	Labels map[string]string `json:"labels,omitempty"`
	// NoCache runs every step, even if its layer is cached.
	NoCache bool `json:"no_cache,omitempty"`
	// Secrets are the values of secret mounts. They are in no layer, in no event and in no record.
	Secrets []BuildSecret `json:"secrets,omitempty"`
	// Sandbox sets the sandboxes that the steps run in.
	Sandbox BuildSandbox `json:"sandbox,omitzero"`
}

// ImagePackages is an image with packages installed.
type ImagePackages struct {
	// From is the image below. Empty is DefaultImage.
	From string `json:"from,omitempty"`
	// Apt, Pip and Npm are names of packages, as their installers take them.
	Apt []string `json:"apt,omitempty"`
	Pip []string `json:"pip,omitempty"`
	Npm []string `json:"npm,omitempty"`
}

// BuildSecret is a secret of a build.
type BuildSecret struct {
	ID    string `json:"id"`
	Value Bytes  `json:"value"`
}

// BuildSandbox is the part of a SandboxSpec that a build can set. Steps run as the user of the Dockerfile, at
// first as root.
type BuildSandbox struct {
	Profile   string      `json:"profile,omitempty"`
	Engine    string      `json:"engine,omitempty"`
	Network   string      `json:"network,omitempty"`
	Egress    *Egress     `json:"egress,omitempty"`
	Secrets   []SecretUse `json:"secrets,omitempty"`
	Endpoints []Endpoint  `json:"endpoints,omitempty"`
	Limits    Limits      `json:"limits,omitzero"`
}

// BuildEvent is one event of a build. One of Step, Data, Warning, Pull and Image is set.
type BuildEvent struct {
	// Step is the step that begins.
	Step *BuildStep `json:"step,omitempty"`
	// Data is output of the step's program on Stream.
	Stream Stream `json:"stream,omitempty"`
	Data   Bytes  `json:"data,omitempty"`
	// Warning says what the image will lack.
	Warning string `json:"warning,omitempty"`
	// Pull is the progress of a base image.
	Pull *PullProgress `json:"pull,omitempty"`
	// Image is the result. It is the last event.
	Image *Image `json:"image,omitempty"`
}

// BuildStep is a step of a build.
type BuildStep struct {
	// Number counts the steps from 1 to Total.
	Number int `json:"number"`
	Total  int `json:"total"`
	// Stage is the name of the stage, if it has one, and Text the instruction.
	Stage string `json:"stage,omitempty"`
	Text  string `json:"text"`
	// Cached steps have a layer from an earlier build and do not run.
	Cached bool `json:"cached,omitempty"`
}

// ImageCommitRequest says how to make an image of a sandbox.
type ImageCommitRequest struct {
	// Name is as in ImageBuildRequest.
	Name string `json:"name"`
	// Config is put over the configuration of the sandbox's image. Variables are added to its Env.
	Config *ImageConfig `json:"config,omitempty"`
}
