package api

// TarOutOptions choose what an archive of a directory holds.
type TarOutOptions struct {
	// Exclude are paths below the directory that are left out with all below them.
	// They are literal, never patterns.
	Exclude []string
	// KeepLinks leaves symlinks as they are. Otherwise one that is absolute and
	// leads to something in the directory is made relative, so that it leads there
	// wherever the archive is unpacked.
	KeepLinks bool
	// CopyHardLinks writes the content of a file again for each further name that it has.
	// Otherwise the further names are hard links, which some readers of archives refuse.
	CopyHardLinks bool
}

// TarInOptions say how an archive is unpacked into a directory.
type TarInOptions struct {
	// Exclude is as in TarOutOptions, of the paths in the archive.
	Exclude []string
	// Owner gets what is made: a name, a uid or uid:gid of the sandbox, or
	// OwnerKeep; empty is the sandbox's user.
	Owner string
	// Links says what becomes of symlinks that lead out of the directory.
	Links ExternalLinks
	// Atomic unpacks beside what is there, and puts all of it in place only when
	// the whole archive was found good. Otherwise what came before the first error
	// stays.
	Atomic bool
	// Clear removes what was in the directory before, except for Keep and for what is
	// mounted in it. It implies Atomic.
	Clear bool
	// Keep are paths that Clear leaves as they are.
	Keep []string
}

// OwnerKeep as TarInOptions.Owner takes the numeric owners of the archive.
const OwnerKeep = "keep"

// ExternalLinks is what becomes of symlinks that lead out of an archive.
type ExternalLinks string

// The choices. Inside a sandbox such a link leads to no more than what its
// programs reach anyway, and a Python environment is full of them.
const (
	LinksKeep   ExternalLinks = "keep" // also when empty
	LinksDrop   ExternalLinks = "drop" // left out and reported
	LinksReject ExternalLinks = "reject"
)

// TarReport says what a tar import or export did.
type TarReport struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// SHA256 is of the archive as it was sent, in hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// Skipped lists what was left out and why; at most 1000 are named.
	Skipped []TarSkip `json:"skipped,omitempty"`
}

// TarSkip is one entry that was left out.
type TarSkip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}
