package image

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cloche-dev/cloche/api"
)

// TestRecordsThatCannotBeRead: what belongs to the record of an image that cannot be read
// is not known, so no root filesystem is swept until it is repaired, and it is reported. A
// record of a later version is one.
func TestRecordsThatCannotBeRead(t *testing.T) {
	for what, record := range map[string]func(whole string) string{
		"empty":         func(string) string { return "" },
		"torn":          func(whole string) string { return whole[:len(whole)/2] },
		"no record":     func(string) string { return "{}" },
		"later version": func(whole string) string { return strings.Replace(whole, `"version": 1`, `"version": 2`, 1) },
		"another's": func(whole string) string {
			return strings.Replace(whole, `"digest": "sha256:`, `"digest": "sha256:0`, 1)
		},
		"leads elsewhere": func(whole string) string { return strings.Replace(whole, `"root": "`, `"root": "../`, 1) },
	} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			imported, err := s.ImportStream(t.Context(), "kept", bytes.NewReader(layerTar(t, file{name: "x", body: "y"})), ImportOptions{})
			must(t, err)
			path := s.oci.recordPath(imported.Digest)
			whole, err := os.ReadFile(path)
			must(t, err)
			broken := record(string(whole))
			if broken == string(whole) {
				t.Fatalf("%s is the record as it was", whole)
			}
			must(t, os.WriteFile(path, []byte(broken), 0o600))
			s = openStore(t, s.dir) // as the next daemon
			roots, err := os.ReadDir(s.oci.at("roots"))
			must(t, err)
			for _, e := range roots {
				must(t, os.Chtimes(s.oci.at("roots", e.Name()), timeAgo(2), timeAgo(2)))
			}
			_, err = s.Prune(t.Context(), PruneOptions{MaxBytes: 1 << 40})
			must(t, err)
			if left, err := os.ReadDir(s.oci.at("roots")); err != nil || len(left) != 1 {
				t.Errorf("after a prune there are %v, %v", left, err)
			}
			if got, want := s.Unreadable(), []string{filepath.Join("images", filepath.Base(path))}; !slices.Equal(got, want) {
				t.Errorf("told are %q, want %q", got, want)
			}
			if _, err := s.Resolve(t.Context(), "kept", Need{}); err == nil {
				t.Error("it is used all the same")
			}
			must(t, os.WriteFile(path, whole, 0o600))
			s = openStore(t, s.dir)
			if _, err := s.Resolve(t.Context(), "kept", Need{}); err != nil {
				t.Errorf("with its record mended: %v", err)
			}
			if got := s.Unreadable(); got != nil {
				t.Errorf("with its record mended, told are %q", got)
			}
		})
	}
}

// TestImagesAsLargeAsTheBound: layers that have just what may be occupied are asked for.
func TestImagesAsLargeAsTheBound(t *testing.T) {
	r := startRegistry(t)
	one, two := layerOf(t, file{name: "x", body: noiseOf(1)}), layerOf(t, file{name: "y", body: noiseOf(2)})
	for ref, img := range map[string]v1.Image{"one:1": imageOf(t, one), "two:1": imageOf(t, one, two)} {
		r.push(t, ref, img)
		m, err := img.Manifest()
		must(t, err)
		total := int64(0)
		for _, l := range m.Layers {
			total += l.Size
		}
		_, err = images(t).Pull(t.Context(), r.host+"/"+ref, PullOptions{MaxBytes: total - 1})
		wantError(t, err, api.CodeTooLarge, false, "all that images may occupy here")
		if _, err := images(t).Pull(t.Context(), r.host+"/"+ref, PullOptions{MaxBytes: total}); err != nil && strings.Contains(err.Error(), "its layers have more than") {
			t.Errorf("%s, with room for its layers: %v", ref, err)
		}
	}
}

// TestInterpreters: the interpreter of a script is what its first line names.
func TestInterpreters(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	t.Cleanup(func() { root.Close() })
	for text, want := range map[string][]string{
		"#!/bin/sh\n/bin/other\n":   {"/bin/sh"},
		"#! /usr/bin/env python3\n": {"/usr/bin/env"},
		"#!\n/bin/other\n":          nil,
		"#!sh\n":                    nil,
		"text":                      nil,
	} {
		must(t, os.WriteFile(filepath.Join(dir, "script"), []byte(text), 0o755))
		if got, err := (&baseBuilder{packer: packer{root: root}}).needs("script"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q needs %q, %v, want %q", text, got, err, want)
		}
	}
}
