package layout_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// renames are the files of the product that give files another name by themselves, with what
// they rename. Every record is written by internal/hostfile, which makes it last.
var renames = map[string]string{
	"internal/hostfile/":                      "the one place that writes records",
	"internal/agent/guest/":                   "files of the sandbox's own, by the sandbox's own rules",
	"internal/skill/":                         "files of skills, synced with their directories",
	"internal/workspace/place_":               "a directory that a caller named, in its place",
	"internal/workspace/discard.go":           "files that become trash, after a record that says so",
	"internal/workspace/project_linux.go":     "a project that becomes trash",
	"internal/workspace/record.go":            "the disk of a workspace that is on record; a reader finishes it",
	"internal/workspace/layercommit_linux.go": "files of a commit, which its mark covers",
	"internal/sandbox/record/moved.go":        "directories of a home that was moved, again after a crash",
	"internal/sandbox/directory/directory.go": "directories that go, and the description, whose name a reader mends",
	"internal/sandbox/directory/memory.go":    "a saved memory that goes, after a record that says so",
	"internal/sandbox/tombstone/":             "the list of removed sandboxes of a home that was moved, again after a crash",
	"internal/sandbox/process/declared.go":    "the record of an earlier run, whose name a reader takes as it is",
	"internal/sandbox/process/process.go":     "the directory of a process that goes",
	"internal/snapshot/":                      "whole snapshots, whose directory is synced",
	"internal/job/store.go":                   "a job that begins, whose directory is synced",
	"internal/endpoint/recording/store.go":    "a recording, synced",
	"internal/daemon/socket_darwin.go":        "a socket",
	"internal/egress/network/log.go":          "a log that turns",
	"internal/engine/gvisor/booted.go":        "a socket",
	"internal/engine/gvisor/executable.go":    "a copy of the program, which is verified and made again",
	"internal/engine/checkpoint/encode.go":    "a compressed or encrypted memory, synced",
	"internal/engine/hostrootfs/image.go":     "an unpacked image, synced",
	"internal/engine/enginetest/":             "a program that tests run inside",
	"internal/cli/sandbox/cp.go":              "a file that the user asked for",
	"internal/cli/image/build.go":             "a file that the user asked for",
}

// Only the listed packages rename files, so that no record is written without
// internal/hostfile.
func TestRecordsAreWrittenInOnePlace(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "bench/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch call.Sel.Name {
			case "Rename", "Renameat", "Renameat2", "RenameatxNp", "RenamexNp", "MoveFileEx":
			default:
				return true
			}
			for prefix := range renames {
				if strings.HasPrefix(path, prefix) {
					used[prefix] = true
					return true
				}
			}
			t.Errorf("%s renames files: write records with hostfile.Replace, or list what it renames and why that needs no sync", path)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for prefix := range renames {
		if !used[prefix] {
			t.Errorf("%s renames nothing any more", prefix)
		}
	}
}
