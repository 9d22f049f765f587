package api

// TarOutOptions configures the export of a directory as a tar archive.
type TarOutOptions struct {
	// Exclude lists paths below the directory to leave out, with everything below them. They are
	// literal paths, not patterns.
	Exclude []string
	// KeepLinks leaves symlinks unchanged. Otherwise an absolute symlink to something in the
	// directory is made relative, so that it works wherever the archive is unpacked.
	KeepLinks bool
	// CopyHardLinks writes the content of a file again for each further name. Otherwise further
	// names are hard links, which some archive readers refuse.
	CopyHardLinks bool
}

// TarInOptions configures the import of a tar archive into a directory.
type TarInOptions struct {
	// Exclude is as in TarOutOptions, for paths in the archive.
	Exclude []string
	// Owner is the owner of the created files: a name, a uid or uid:gid of the sandbox, or
	// OwnerKeep. Empty is the sandbox's user.
	Owner string
	// Links says how to handle symlinks that lead out of the directory.
	Links ExternalLinks
	// Atomic unpacks beside the present content and moves everything into place only after the whole
	// archive was found valid. Otherwise, what came before the first error stays.
	Atomic bool
	// Clear removes the earlier content of the directory, except for Keep and for mounts in it.
	// It implies Atomic.
	Clear bool
	// Keep lists paths that Clear does not remove.
	Keep []string
}

// OwnerKeep as TarInOptions.Owner uses the numeric owners in the archive.
const OwnerKeep = "keep"

// ExternalLinks says how to handle symlinks that lead out of an archive.
type ExternalLinks string

// Values of ExternalLinks. Inside a sandbox, such a link leads only to what its programs can reach
// anyway, and Python environments contain many of them.
const (
	LinksKeep   ExternalLinks = "keep" // also when empty
	LinksDrop   ExternalLinks = "drop" // left out and reported
	LinksReject ExternalLinks = "reject"
)

// TarReport says what a tar import or export did.
type TarReport struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// SHA256 is the hash of the archive as it was sent, in hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// Skipped lists what was left out and why, at most 1000 entries.
	Skipped []TarSkip `json:"skipped,omitempty"`
}

// TarSkip is one entry that was left out.
type TarSkip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}
