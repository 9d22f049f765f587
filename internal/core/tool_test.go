//go:build linux

package core_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/longtest"
)

// at is a place for a file tool in the workspace.
func at(path string) cloche.ToolPlace { return cloche.ToolPlace{Path: path} }

// TestToolsKeepToTheirBounds: each tool through the core, in a workspace, which the
// imaginary machine has at its own path, that has more
// of everything than a model gets.
func TestToolsKeepToTheirBounds(t *testing.T) {
	longtest.Skip(t, "it writes large trees")
	h := newHouse(t)
	dir := t.TempDir()
	if _, err := h.Create(t.Context(), operator, cloche.SandboxSpec{Name: "box", Workspace: &cloche.Workspace{Dir: dir, Path: dir}}, nil); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("lines", strings.Repeat("x\n", cloche.MaxToolLines+1))
	put("wide", strings.Repeat(strings.Repeat("y", 1023)+"\n", 60))
	put("edited", strings.Repeat("z", cloche.MaxToolEdit+1))
	if err := os.Mkdir(filepath.Join(dir, "many"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range cloche.MaxToolFiles + 1 {
		put(fmt.Sprintf("many/%04d", i), "n")
	}
	text, err := h.ReadText(ctx, operator, "box", cloche.ToolRead{ToolPlace: at("lines")})
	if err != nil || text.Lines != cloche.DefaultToolLines || !text.More || text.Path != dir+"/lines" {
		t.Errorf("a read says nothing: %d lines, %v, %v", text.Lines, text.More, err)
	}
	text, err = h.ReadText(ctx, operator, "box", cloche.ToolRead{ToolPlace: at("lines"), Lines: cloche.MaxToolLines})
	if err != nil || text.Lines != cloche.MaxToolLines || !text.More {
		t.Errorf("the most lines: %d, %v, %v", text.Lines, text.More, err)
	}
	text, err = h.ReadText(ctx, operator, "box", cloche.ToolRead{ToolPlace: at("wide")})
	if err != nil || len(text.Content) > cloche.MaxToolText || text.Lines != 50 || !text.More {
		t.Errorf("the most bytes: %d in %d lines, %v", len(text.Content), text.Lines, err)
	}
	found, err := h.Glob(ctx, operator, "box", cloche.ToolGlob{Pattern: "many/*"})
	if err != nil || len(found.Files) != cloche.MaxToolGlob || found.Partial == "" {
		t.Errorf("a glob: %d, %q, %v", len(found.Files), found.Partial, err)
	}
	matches, err := h.Grep(ctx, operator, "box", cloche.ToolGrep{ToolPlace: at("lines"), Pattern: "x"})
	if err != nil || len(matches.Matches) != cloche.MaxToolGrep || matches.Partial != cloche.PartialMatches {
		t.Errorf("a grep: %d, %q, %v", len(matches.Matches), matches.Partial, err)
	}
	matches, err = h.Grep(ctx, operator, "box", cloche.ToolGrep{ToolPlace: at("many"), Pattern: "nothing"})
	if err != nil || matches.Searched > cloche.MaxToolFiles || matches.Partial != cloche.PartialFiles && matches.Partial != cloche.PartialTime {
		t.Errorf("a grep of many files: %d, %q, %v", matches.Searched, matches.Partial, err)
	}
	for what, err := range map[string]error{
		"lines":        second(h.ReadText(ctx, operator, "box", cloche.ToolRead{ToolPlace: at("lines"), Lines: cloche.MaxToolLines + 1})),
		"limit":        second(h.Glob(ctx, operator, "box", cloche.ToolGlob{Pattern: "*", Limit: cloche.MaxToolGlob + 1})),
		"grep's limit": second(h.Grep(ctx, operator, "box", cloche.ToolGrep{Pattern: "x", Limit: cloche.MaxToolGrep + 1})),
		"a pattern":    second(h.Grep(ctx, operator, "box", cloche.ToolGrep{Pattern: strings.Repeat("x", cloche.MaxToolPattern+1)})),
	} {
		if e := errorOf(t, err); e.Code != cloche.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"a write": second(h.WriteText(ctx, operator, "box", cloche.ToolWrite{ToolPlace: at("new"), Content: strings.Repeat("x", cloche.MaxToolWrite+1)})),
		"an edit": second(h.EditText(ctx, operator, "box", cloche.ToolEdit{ToolPlace: at("edited"), Old: "z", New: "y", All: true})),
	} {
		if e := errorOf(t, err); e.Code != cloche.CodeTooLarge {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
		t.Error("a write that is refused leaves something")
	}
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

// TestToolsAreOnRecord: every use of a tool, and which of them may be whose.
func TestToolsAreOnRecord(t *testing.T) {
	h := newHouse(t)
	red, _ := h.caller(t, cloche.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, cloche.KeySpec{Tenant: "blue"})
	ctx := t.Context()
	if _, err := h.Create(ctx, red, cloche.SandboxSpec{Naming: identity("42")}, nil); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	place := cloche.ToolPlace{Naming: identity("42"), Root: root, Path: "f"}
	written, err := h.WriteText(ctx, red, cloche.RefByNaming, cloche.ToolWrite{ToolPlace: place, Content: "one\ntwo\n"})
	if err != nil || !written.Created || written.Path != root+"/f" {
		t.Fatalf("%+v, %v", written, err)
	}
	if edited, err := h.EditText(ctx, red, cloche.RefByNaming, cloche.ToolEdit{ToolPlace: place, Old: "two", New: secretValue}); err != nil || edited.Line != 2 {
		t.Errorf("%+v, %v", edited, err)
	}
	if text, err := h.ReadText(ctx, red, cloche.RefByNaming, cloche.ToolRead{ToolPlace: place}); err != nil || text.Content != "one\n"+secretValue+"\n" {
		t.Errorf("%+v, %v", text, err)
	}
	if _, err := h.ReadText(ctx, red, cloche.RefByNaming, cloche.ToolRead{ToolPlace: cloche.ToolPlace{Naming: identity("42"), Root: root, Path: "../outside"}}); cloche.CodeOf(err) != cloche.CodeInvalid {
		t.Errorf("out of the root: %v", err)
	}
	all := cloche.ToolPlace{Naming: identity("42"), Root: root}
	if l, err := h.Glob(ctx, red, cloche.RefByNaming, cloche.ToolGlob{ToolPlace: all, Pattern: "*"}); err != nil || len(l.Files) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := h.Grep(ctx, red, cloche.RefByNaming, cloche.ToolGrep{ToolPlace: all, Pattern: "^o"}); err != nil || len(l.Matches) != 1 || l.Matches[0].Line != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	for what, err := range map[string]error{
		"read":  second(h.ReadText(ctx, blue, cloche.RefByNaming, cloche.ToolRead{ToolPlace: place})),
		"write": second(h.WriteText(ctx, blue, cloche.RefByNaming, cloche.ToolWrite{ToolPlace: place})),
		"edit":  second(h.EditText(ctx, blue, cloche.RefByNaming, cloche.ToolEdit{ToolPlace: place, Old: "a", New: "b"})),
		"glob":  second(h.Glob(ctx, blue, cloche.RefByNaming, cloche.ToolGlob{ToolPlace: all, Pattern: "*"})),
		"grep":  second(h.Grep(ctx, blue, cloche.RefByNaming, cloche.ToolGrep{ToolPlace: all, Pattern: "x"})),
	} {
		if cloche.CodeOf(err) != cloche.CodeNotFound {
			t.Errorf("%s of another tenant: %v", what, err)
		}
	}
	lines := h.records(t)
	for _, want := range [][]string{
		{"write_file ok", "path:f", "root:" + root}, {"edit_file ok", "path:f"}, {"read_file ok", "path:f"}, {"read_file ", "invalid", "path:../outside"},
		{"list_files ok", "root:" + root}, {"read_file ", "not_found"}, {"edit_file ", "not_found"},
	} {
		if !holds(lines, want...) {
			t.Errorf("no record of %v in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	h.holdsNot(t, secretValue)
}
