//go:build linux

package core_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/longtest"
)

// at is a place for a file tool in the workspace.
func at(path string) api.ToolPlace { return api.ToolPlace{Path: path} }

// TestToolsKeepToTheirBounds: each tool through the core, in a workspace, which the
// imaginary machine has at its own path, that has more
// of everything than a model gets.
func TestToolsKeepToTheirBounds(t *testing.T) {
	longtest.Skip(t, "it writes large trees")
	h := newFixture(t)
	dir := t.TempDir()
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box", Workspace: &api.Workspace{Dir: dir, Path: dir}}, nil); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("lines", strings.Repeat("x\n", api.MaxToolLines+1))
	put("wide", strings.Repeat(strings.Repeat("y", 1023)+"\n", 60))
	put("edited", strings.Repeat("z", api.MaxToolEdit+1))
	if err := os.Mkdir(filepath.Join(dir, "many"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range api.MaxToolFiles + 1 {
		put(fmt.Sprintf("many/%04d", i), "n")
	}
	text, err := h.ReadText(ctx, operator, "box", api.ToolRead{ToolPlace: at("lines")})
	if err != nil || text.Lines != api.DefaultToolLines || !text.More || text.Path != dir+"/lines" {
		t.Errorf("a read says nothing: %d lines, %v, %v", text.Lines, text.More, err)
	}
	text, err = h.ReadText(ctx, operator, "box", api.ToolRead{ToolPlace: at("lines"), Lines: api.MaxToolLines})
	if err != nil || text.Lines != api.MaxToolLines || !text.More {
		t.Errorf("the most lines: %d, %v, %v", text.Lines, text.More, err)
	}
	text, err = h.ReadText(ctx, operator, "box", api.ToolRead{ToolPlace: at("wide")})
	if err != nil || len(text.Content) > api.MaxToolText || text.Lines != 50 || !text.More {
		t.Errorf("the most bytes: %d in %d lines, %v", len(text.Content), text.Lines, err)
	}
	found, err := h.Glob(ctx, operator, "box", api.ToolGlob{Pattern: "many/*"})
	if err != nil || len(found.Files) != api.MaxToolGlob || found.Partial == "" {
		t.Errorf("a glob: %d, %q, %v", len(found.Files), found.Partial, err)
	}
	matches, err := h.Grep(ctx, operator, "box", api.ToolGrep{ToolPlace: at("lines"), Pattern: "x"})
	if err != nil || len(matches.Matches) != api.MaxToolGrep || matches.Partial != api.PartialMatches {
		t.Errorf("a grep: %d, %q, %v", len(matches.Matches), matches.Partial, err)
	}
	matches, err = h.Grep(ctx, operator, "box", api.ToolGrep{ToolPlace: at("many"), Pattern: "nothing"})
	if err != nil || matches.Searched > api.MaxToolFiles || matches.Partial != api.PartialFiles && matches.Partial != api.PartialTime {
		t.Errorf("a grep of many files: %d, %q, %v", matches.Searched, matches.Partial, err)
	}
	for what, err := range map[string]error{
		"lines":        second(h.ReadText(ctx, operator, "box", api.ToolRead{ToolPlace: at("lines"), Lines: api.MaxToolLines + 1})),
		"limit":        second(h.Glob(ctx, operator, "box", api.ToolGlob{Pattern: "*", Limit: api.MaxToolGlob + 1})),
		"grep's limit": second(h.Grep(ctx, operator, "box", api.ToolGrep{Pattern: "x", Limit: api.MaxToolGrep + 1})),
		"a pattern":    second(h.Grep(ctx, operator, "box", api.ToolGrep{Pattern: strings.Repeat("x", api.MaxToolPattern+1)})),
	} {
		if e := errorOf(t, err); e.Code != api.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"a write": second(h.WriteText(ctx, operator, "box", api.ToolWrite{ToolPlace: at("new"), Content: strings.Repeat("x", api.MaxToolWrite+1)})),
		"an edit": second(h.EditText(ctx, operator, "box", api.ToolEdit{ToolPlace: at("edited"), Old: "z", New: "y", All: true})),
	} {
		if e := errorOf(t, err); e.Code != api.CodeTooLarge {
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
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	ctx := t.Context()
	if _, err := h.Create(ctx, red, api.SandboxSpec{Naming: identity("42")}, nil); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	place := api.ToolPlace{Naming: identity("42"), Root: root, Path: "f"}
	written, err := h.WriteText(ctx, red, api.RefByNaming, api.ToolWrite{ToolPlace: place, Content: "one\ntwo\n"})
	if err != nil || !written.Created || written.Path != root+"/f" {
		t.Fatalf("%+v, %v", written, err)
	}
	if edited, err := h.EditText(ctx, red, api.RefByNaming, api.ToolEdit{ToolPlace: place, Old: "two", New: secretValue}); err != nil || edited.Line != 2 {
		t.Errorf("%+v, %v", edited, err)
	}
	if text, err := h.ReadText(ctx, red, api.RefByNaming, api.ToolRead{ToolPlace: place}); err != nil || text.Content != "one\n"+secretValue+"\n" {
		t.Errorf("%+v, %v", text, err)
	}
	if _, err := h.ReadText(ctx, red, api.RefByNaming, api.ToolRead{ToolPlace: api.ToolPlace{Naming: identity("42"), Root: root, Path: "../outside"}}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("out of the root: %v", err)
	}
	all := api.ToolPlace{Naming: identity("42"), Root: root}
	if l, err := h.Glob(ctx, red, api.RefByNaming, api.ToolGlob{ToolPlace: all, Pattern: "*"}); err != nil || len(l.Files) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := h.Grep(ctx, red, api.RefByNaming, api.ToolGrep{ToolPlace: all, Pattern: "^o"}); err != nil || len(l.Matches) != 1 || l.Matches[0].Line != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	for what, err := range map[string]error{
		"read":  second(h.ReadText(ctx, blue, api.RefByNaming, api.ToolRead{ToolPlace: place})),
		"write": second(h.WriteText(ctx, blue, api.RefByNaming, api.ToolWrite{ToolPlace: place})),
		"edit":  second(h.EditText(ctx, blue, api.RefByNaming, api.ToolEdit{ToolPlace: place, Old: "a", New: "b"})),
		"glob":  second(h.Glob(ctx, blue, api.RefByNaming, api.ToolGlob{ToolPlace: all, Pattern: "*"})),
		"grep":  second(h.Grep(ctx, blue, api.RefByNaming, api.ToolGrep{ToolPlace: all, Pattern: "x"})),
	} {
		if api.CodeOf(err) != api.CodeNotFound {
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
