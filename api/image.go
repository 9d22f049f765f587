package api

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Image is one root filesystem that a create can name.
type Image struct {
	// Name is what requests call it, as short as it can be: "host", "python:3.11".
	Name string `json:"name"`
	// Digest is of the manifest for this platform; an image that came without a
	// manifest has the digest of its configuration.
	Digest string `json:"digest,omitempty"`
	// SizeBytes is what it occupies under the home; 0 for host.
	SizeBytes   int64  `json:"size_bytes"`
	Description string `json:"description,omitempty"`
	// IndexDigest is of the list of platforms that the manifest was chosen from: a
	// reference pinned to it is this image.
	IndexDigest string `json:"index_digest,omitempty"`
	// Platform is "linux/amd64" and the like.
	Platform string `json:"platform,omitempty"`
	// Source says how it came here: "registry", "oci", "docker-archive", "tar",
	// "directory", "build".
	Source string `json:"source,omitempty"`
	// Config is what the image says about how it wants to be run.
	Config *ImageConfig `json:"config,omitempty"`
	Layers []ImageLayer `json:"layers,omitempty"`
	// Notes say what of the image could not be kept.
	Notes     []string   `json:"notes,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	PulledAt  *time.Time `json:"pulled_at,omitempty"`
	// UsedAt is when it was last used, to the hour.
	UsedAt *time.Time `json:"used_at,omitempty"`
}

// ImageConfig is the part of an image's configuration that Cloche honours.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	// Entrypoint and Cmd together are the command of a run that names none. They
	// are never put before a command that is given.
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	StopSignal string            `json:"stop_signal,omitempty"`
}

// Command is what runs when nobody says what to run; empty when the image does
// not say either.
func (c ImageConfig) Command() []string {
	return append(append([]string(nil), c.Entrypoint...), c.Cmd...)
}

// ImageLayer is one layer of an image, lowest first.
type ImageLayer struct {
	// Digest is of the layer as it was transferred.
	Digest string `json:"digest,omitempty"`
	// DiffID is of the uncompressed tar.
	DiffID    string `json:"diff_id"`
	SizeBytes int64  `json:"size_bytes"`
}

// ImageList is the answer of GET /v1/images.
type ImageList struct {
	Images []Image `json:"images"`
}

// PullPolicy says when an image is fetched.
type PullPolicy string

// The policies of a pull.
const (
	PullMissing PullPolicy = "missing" // when it is not here
	PullNever   PullPolicy = "never"
	PullAlways  PullPolicy = "always" // also to see whether it has changed there
)

// PullRequest asks for an image from its registry.
type PullRequest struct {
	Image string `json:"image"`
	// Platform is "linux/amd64" and the like; empty is this machine's.
	Platform string `json:"platform,omitempty"`
}

// PullPhase is what a pull is doing.
type PullPhase string

// The phases of a pull. Download and Unpack are told for each layer and overlap.
const (
	PullResolve  PullPhase = "resolve"
	PullWait     PullPhase = "wait" // for another pull of the same image
	PullDownload PullPhase = "download"
	PullUnpack   PullPhase = "unpack"
	PullWrite    PullPhase = "write"
	PullDone     PullPhase = "done"
)

// PullProgress is how far a pull is.
type PullProgress struct {
	Image string    `json:"image"`
	Phase PullPhase `json:"phase"`
	// Layer is the digest of the layer that the numbers are of.
	Layer string `json:"layer,omitempty"`
	// Bytes have been transferred of TotalBytes; both are 0 where there is nothing
	// to count.
	Bytes      int64 `json:"bytes,omitempty"`
	TotalBytes int64 `json:"total_bytes,omitempty"`
}

// ImageFormat is what an archive with an image is.
type ImageFormat string

// The formats of an import. Each may be compressed.
const (
	FormatOCIArchive    ImageFormat = "oci-archive"    // a tar of an OCI layout
	FormatDockerArchive ImageFormat = "docker-archive" // what `docker save` writes
	FormatTar           ImageFormat = "tar"            // a root filesystem
)

// ImportOptions say how an archive becomes an image.
type ImportOptions struct {
	// Name is what the image will be called; empty is the name that it has in the
	// archive.
	Name string
	// Format is what the archive must be; empty takes what it is.
	Format ImageFormat
	// Ref chooses one image of an archive with several, by the name it has there.
	Ref string
	// Platform is "linux/amd64" and the like; empty is the daemon's.
	Platform string
}

// ImageBuildRequest asks for an image of programs of the daemon's machine.
type ImageBuildRequest struct {
	Name string `json:"name"`
	// Paths are absolute: programs, each with the libraries and the interpreter that
	// it needs, and directories, each whole.
	Paths []string `json:"paths"`
	// Config is how the image wants to be run.
	Config *ImageConfig `json:"config,omitempty"`
}

// ImagePruneRequest asks for space.
type ImagePruneRequest struct {
	// MaxBytes is what images may occupy afterwards; 0 keeps only what is in use, and
	// nil is the operator's own bound.
	MaxBytes *int64 `json:"max_bytes,omitempty"`
	// DryRun tells what would go.
	DryRun bool `json:"dry_run,omitempty"`
}

// ImagePruneResult is what a prune did.
type ImagePruneResult struct {
	// Removed are the images that are gone, those first that were not used for the
	// longest time.
	Removed []Image `json:"removed"`
	// FreedBytes counts layers too that were kept to spare a later pull.
	FreedBytes int64 `json:"freed_bytes"`
	// UsedBytes is what images and such layers occupy now.
	UsedBytes int64 `json:"used_bytes"`
}

// DefaultRegistry is where an image is looked for when its reference names no
// registry.
const DefaultRegistry = "docker.io"

// ImageRef is a reference to an OCI image, with every default filled in.
type ImageRef struct {
	// Registry is a host, with a port where one was given.
	Registry string
	// Repository is the path there: "library/python".
	Repository string
	// Tag is empty only when Digest is set.
	Tag string
	// Digest is "sha256:" and 64 digits, or empty.
	Digest string
}

const (
	refHost   = `(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?`
	refPart   = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	maxRef    = 512
	maxRepo   = 255
	digestLen = len("sha256:") + 64
)

// The patterns are compiled when they are asked for: the agent in each sandbox has
// this package too, and knows no images.
var (
	refHostPattern = pattern(`^` + refHost + `$`)
	refNamePattern = pattern(`^` + refPart + `(?:/` + refPart + `)*$`)
	refTagPattern  = pattern(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// ErrHostImage is the cause of the error about a reference that gives DefaultImage a
// tag, a digest or a registry.
var ErrHostImage = errors.New("the host image is in no registry")

// ParseImageRef reads a reference as people write it: "python", "python:3.11",
// "ghcr.io/owner/name@sha256:…". An error is CodeInvalid with the field "image".
// DefaultImage is no reference, and no reference names it: a registry can be asked
// for every reference.
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
	// What is written in full must be a reference too, so that the bounds are of it.
	if len(r.Repository) > maxRepo || len(r.String()) > maxRef {
		return bad("in full it must have at most 512 characters, and 255 in its name")
	}
	return r, nil
}

// ValidDigest is true for "sha256:" and 64 of 0-9a-f.
func ValidDigest(s string) bool {
	return len(s) == digestLen && strings.HasPrefix(s, "sha256:") && strings.Trim(s[len("sha256:"):], "0123456789abcdef") == ""
}

// String is the reference in full: two references to the same image in the same
// place have the same text.
func (r ImageRef) String() string { return r.Registry + "/" + r.Repository + r.suffix() }

// Familiar is the reference as people write it.
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
