package cloche

import "time"

// FileInfo describes one file inside a sandbox.
type FileInfo struct {
	// Name is the last element of the path. Names are bytes on Linux: one that
	// is not UTF-8 has its raw form in NameBytes and a readable one here.
	Name      string    `json:"name"`
	NameBytes []byte    `json:"name_bytes,omitempty"`
	Type      FileType  `json:"type"`
	Size      int64     `json:"size"`
	Mode      uint32    `json:"mode"`
	UID       uint32    `json:"uid"`
	GID       uint32    `json:"gid"`
	ModTime   time.Time `json:"mod_time"`
	// LinkTarget is set for a symlink.
	LinkTarget string `json:"link_target,omitempty"`
}

// FileType is what kind of file it is.
type FileType string

// The types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileList is the content of one directory, sorted by name.
type FileList struct {
	Files []FileInfo `json:"files"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}
