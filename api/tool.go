package api

import "time"

// Bounds of the file tools.
const (
	// DefaultToolLines is how many lines a read returns that says nothing, MaxToolLines
	// the most, and MaxToolText how many bytes of them.
	DefaultToolLines = 2000
	MaxToolLines     = 10_000
	MaxToolText      = 50 << 10
	// MaxToolEdit is the largest file that is edited, in bytes, and MaxToolWrite the
	// largest that is written.
	MaxToolEdit  = 1 << 20
	MaxToolWrite = 4 << 20
	// MaxToolGlob and MaxToolGrep are the most matches, and what a request gets that
	// says nothing.
	MaxToolGlob = 100
	MaxToolGrep = 200
	// MaxToolFiles is how many files a grep looks into, MaxToolFile how large one may be,
	// and MaxToolLine how much of each line is looked at, in bytes.
	MaxToolFiles = 5000
	MaxToolFile  = 4 << 20
	MaxToolLine  = 16 << 10
	// MaxToolShown is how much of a line is shown, in characters.
	MaxToolShown = 500
	// MaxToolPattern is the longest pattern, in bytes.
	MaxToolPattern = 1000
)

// ToolSkip lists the names of directories that glob and grep do not enter where a
// request does not say.
func ToolSkip() []string { return []string{".git", ".hg", ".svn", "node_modules", "__pycache__"} }

// ToolPlace says what a file tool is about. The tools are for models: they do what
// files are read, changed and searched for with bounds of their own, without a program
// of the image.
type ToolPlace struct {
	// Naming chooses the sandbox by who asks, where it is called RefByNaming.
	Naming
	// Root is the directory that the tool does not leave, by no path and no symlink;
	// empty is the sandbox's workspace.
	Root string `json:"root,omitempty"`
	// Path is absolute and below Root, or relative to it; empty is Root.
	Path string `json:"path,omitempty"`
}

// ToolRead reads lines of a text file.
type ToolRead struct {
	ToolPlace
	// FirstLine counts from 1; 0 is 1.
	FirstLine int `json:"first_line,omitempty"`
	// Lines is how many at most; 0 is DefaultToolLines.
	Lines int `json:"lines,omitempty"`
}

// ToolText is what a ToolRead read.
type ToolText struct {
	// Path is absolute.
	Path string `json:"path"`
	// Content is whole lines, unless Cut. Bytes that are not UTF-8 are U+FFFD.
	Content   string `json:"content"`
	FirstLine int    `json:"first_line"`
	Lines     int    `json:"lines"`
	// More follows, from FirstLine+Lines on.
	More bool `json:"more,omitempty"`
	// Cut: the one line is longer than MaxToolText, and this is its beginning.
	Cut bool `json:"cut,omitempty"`
	// Binary: it is no text, and Content is empty.
	Binary bool `json:"binary,omitempty"`
	// Size is the file's, in bytes.
	Size int64 `json:"size"`
}

// ToolWrite replaces a file, or makes it and its directories.
type ToolWrite struct {
	ToolPlace
	Content string `json:"content"`
}

// ToolWritten says what a ToolWrite or a ToolEdit left.
type ToolWritten struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Created: there was no such file.
	Created bool `json:"created,omitempty"`
	// Replaced is how often Old was replaced, and Line where first; of an edit.
	Replaced int `json:"replaced,omitempty"`
	Line     int `json:"line,omitempty"`
}

// ToolEdit replaces text in a file. A concurrent change by another process is
// CodeConflict.
type ToolEdit struct {
	ToolPlace
	// Old must occur exactly once, unless All.
	Old string `json:"old"`
	New string `json:"new"`
	All bool   `json:"all,omitempty"`
}

// ToolGlob finds files by name.
type ToolGlob struct {
	ToolPlace
	// Pattern is relative to Path: "*" and "?" stand for any characters of a name, "[a-z]"
	// for one of these, "{a,b}" for either, and "**" for any number of directories.
	Pattern string `json:"pattern"`
	// Limit is how many at most; 0 is MaxToolGlob.
	Limit int `json:"limit,omitempty"`
	// Skip are names of directories not to enter; nil is ToolSkip().
	Skip []string `json:"skip,omitzero"`
}

// ToolFiles is what a ToolGlob found, that which changed last first.
type ToolFiles struct {
	Files []ToolFile `json:"files"`
	// Partial says why there may be more; empty is that these are all.
	Partial ToolPartial `json:"partial,omitempty"`
}

// ToolFile is one file or directory that was found.
type ToolFile struct {
	Path    string    `json:"path"`
	Type    FileType  `json:"type"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
}

// ToolGrep finds lines in text files.
type ToolGrep struct {
	ToolPlace
	// Pattern is a regular expression in RE2 syntax, or with Fixed plain text.
	Pattern    string `json:"pattern"`
	Fixed      bool   `json:"fixed,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	// Include is a pattern as in ToolGlob for the files to look into; one without "/" is
	// for their names. Empty is all.
	Include string `json:"include,omitempty"`
	// Limit is how many lines at most; 0 is MaxToolGrep.
	Limit int `json:"limit,omitempty"`
	// Skip is as in ToolGlob.
	Skip []string `json:"skip,omitzero"`
}

// ToolLines is what a ToolGrep found, in the order of paths.
type ToolLines struct {
	Matches []ToolMatch `json:"matches"`
	// Searched counts the files that were looked into.
	Searched int `json:"searched"`
	// Binary are files that are no text, and Unread those that were not looked into for
	// another reason; at most the first 100 each.
	Binary []string `json:"binary,omitempty"`
	Unread []string `json:"unread,omitempty"`
	// Partial says why there may be more; empty is that these are all.
	Partial ToolPartial `json:"partial,omitempty"`
}

// ToolMatch is one line.
type ToolMatch struct {
	Path string `json:"path"`
	// Line counts from 1.
	Line int    `json:"line"`
	Text string `json:"text"`
	// Cut: the line is longer than Text.
	Cut bool `json:"cut,omitempty"`
}

// ToolPartial is why a search ended before its end.
type ToolPartial string

// The reasons.
const (
	// PartialMatches: there are as many matches as may be.
	PartialMatches ToolPartial = "matches"
	// PartialFiles: as many files were looked at as may be.
	PartialFiles ToolPartial = "files"
	// PartialTime: it took as long as it may.
	PartialTime ToolPartial = "time"
)
