package api

import "time"

// Limits of the file tools.
const (
	// DefaultToolLines is the default number of lines of a read, MaxToolLines the maximum, and
	// MaxToolText the maximum number of bytes.
	DefaultToolLines = 2000
	MaxToolLines     = 10_000
	MaxToolText      = 50 << 10
	// MaxToolEdit is the size of the largest file that can be edited, in bytes. MaxToolWrite is
	// the same for a file that is written.
	MaxToolEdit  = 1 << 20
	MaxToolWrite = 4 << 20
	// MaxToolGlob and MaxToolGrep are the maximum and the default number of matches.
	MaxToolGlob = 100
	MaxToolGrep = 200
	// MaxToolFiles is the number of files that a grep searches. MaxToolFile is the maximum size
	// of each, and MaxToolLine is how much of each line is searched, in bytes.
	MaxToolFiles = 5000
	MaxToolFile  = 4 << 20
	MaxToolLine  = 16 << 10
	// MaxToolShown is how many characters of a line are returned.
	MaxToolShown = 500
	// MaxToolPattern is the maximum length of a pattern, in bytes.
	MaxToolPattern = 1000
)

// ToolSkip returns the names of directories that glob and grep skip by default.
func ToolSkip() []string { return []string{".git", ".hg", ".svn", "node_modules", "__pycache__"} }

// ToolPlace selects the sandbox and the path of a file tool. The file tools are for models. They
// read, change and search files with their own limits, and do not need a program of the image.
type ToolPlace struct {
	// Naming selects the sandbox by the identity of the request, when it is given as RefByNaming.
	Naming
	// Root is the directory that the tool cannot leave, by any path or symlink. Empty is the
	// sandbox's workspace.
	Root string `json:"root,omitempty"`
	// Path is an absolute path below Root, or a path relative to it. Empty is Root.
	Path string `json:"path,omitempty"`
}

// ToolRead reads lines of a text file.
type ToolRead struct {
	ToolPlace
	// FirstLine is the first line to read, from 1; 0 is 1.
	FirstLine int `json:"first_line,omitempty"`
	// Lines is the maximum number of lines; 0 is DefaultToolLines.
	Lines int `json:"lines,omitempty"`
}

// ToolText is the result of a ToolRead.
type ToolText struct {
	// Path is absolute.
	Path string `json:"path"`
	// Content is complete lines, unless Cut is set. Bytes that are not UTF-8 become U+FFFD.
	Content   string `json:"content"`
	FirstLine int    `json:"first_line"`
	Lines     int    `json:"lines"`
	// More means that there are more lines, from FirstLine+Lines on.
	More bool `json:"more,omitempty"`
	// Cut means that the only line is longer than MaxToolText and Content is its beginning.
	Cut bool `json:"cut,omitempty"`
	// Binary means that the file is not text. Content is empty.
	Binary bool `json:"binary,omitempty"`
	// Size is the size of the file, in bytes.
	Size int64 `json:"size"`
}

// ToolWrite replaces a file, or creates it with its parent directories.
type ToolWrite struct {
	ToolPlace
	Content string `json:"content"`
}

// ToolWritten is the result of a ToolWrite or a ToolEdit.
type ToolWritten struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Created means that the file did not exist before.
	Created bool `json:"created,omitempty"`
	// Replaced is how often an edit replaced Old. Line is the line of the first replacement.
	Replaced int `json:"replaced,omitempty"`
	Line     int `json:"line,omitempty"`
}

// ToolEdit replaces text in a file. If another process changes the file during the edit, the edit
// fails with CodeConflict.
type ToolEdit struct {
	ToolPlace
	// Old must occur exactly once, unless All is set.
	Old string `json:"old"`
	New string `json:"new"`
	All bool   `json:"all,omitempty"`
}

// ToolGlob finds files by name.
type ToolGlob struct {
	ToolPlace
	// Pattern is relative to Path: "*" and "?" match any characters of a name, "[a-z]" matches
	// one of these characters, "{a,b}" matches either, and "**" matches any number of
	// directories.
	Pattern string `json:"pattern"`
	// Limit is the maximum number of files; 0 is MaxToolGlob.
	Limit int `json:"limit,omitempty"`
	// Skip lists names of directories to skip. Nil is ToolSkip().
	Skip []string `json:"skip,omitzero"`
}

// ToolFiles is the result of a ToolGlob, most recently changed first.
type ToolFiles struct {
	Files []ToolFile `json:"files"`
	// Partial says why the result may be incomplete. Empty means that it is complete.
	Partial ToolPartial `json:"partial,omitempty"`
}

// ToolFile is a file or directory that was found.
type ToolFile struct {
	Path    string    `json:"path"`
	Type    FileType  `json:"type"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
}

// ToolGrep finds lines in text files.
type ToolGrep struct {
	ToolPlace
	// Pattern is a regular expression in RE2 syntax, or plain text if Fixed is set.
	Pattern    string `json:"pattern"`
	Fixed      bool   `json:"fixed,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	// Include is a pattern as in ToolGlob for the files to search. A pattern without "/" matches
	// file names only. Empty is all files.
	Include string `json:"include,omitempty"`
	// Limit is the maximum number of lines; 0 is MaxToolGrep.
	Limit int `json:"limit,omitempty"`
	// Skip is as in ToolGlob.
	Skip []string `json:"skip,omitzero"`
}

// ToolLines is the result of a ToolGrep, sorted by path.
type ToolLines struct {
	Matches []ToolMatch `json:"matches"`
	// Searched is the number of files that were searched.
	Searched int `json:"searched"`
	// Binary lists files that are not text. Unread lists files that could not be searched for
	// another reason. Each lists at most the first 100.
	Binary []string `json:"binary,omitempty"`
	Unread []string `json:"unread,omitempty"`
	// Partial says why the result may be incomplete. Empty means that it is complete.
	Partial ToolPartial `json:"partial,omitempty"`
}

// ToolMatch is one matching line.
type ToolMatch struct {
	Path string `json:"path"`
	// Line counts from 1.
	Line int    `json:"line"`
	Text string `json:"text"`
	// Cut means that the line is longer than Text.
	Cut bool `json:"cut,omitempty"`
}

// ToolPartial says why a search ended early.
type ToolPartial string

// Reasons for a partial result.
const (
	// PartialMatches means that the maximum number of matches was reached.
	PartialMatches ToolPartial = "matches"
	// PartialFiles means that the maximum number of files was searched.
	PartialFiles ToolPartial = "files"
	// PartialTime means that the time limit was reached.
	PartialTime ToolPartial = "time"
)
