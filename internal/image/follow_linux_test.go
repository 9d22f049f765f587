package image

import (
	"io/fs"
	"testing"
	"testing/fstest"
)

func TestFollow(t *testing.T) {
	link := func(to string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink | 0o777}
	}
	root := fstest.MapFS{
		"etc/plain":        {Data: []byte("x")},
		"etc/relative":     link("../run/made/stub"),
		"etc/absolute":     link("/var/file"),
		"etc/above":        link("../../../../var/file"),
		"etc/twice":        link("relative"),
		"etc/circle":       link("circle"),
		"etc/toward/other": link("../plain"),
		"linked":           link("etc"),
		"var/file":         {Data: []byte("x")},
		"run":              {Mode: fs.ModeDir | 0o755},
	}
	for name, want := range map[string]string{
		"/etc/plain": "/etc/plain", "/etc/relative": "/run/made/stub", "/etc/absolute": "/var/file", "/etc/above": "/var/file",
		"/etc/twice": "/run/made/stub", "/etc/nothing": "/etc/nothing", "/no/such/place": "/no/such/place", "/etc/circle": "",
		"/linked/plain": "/etc/plain", "/etc/toward/other": "/etc/plain", "/linked/relative/below": "/run/made/stub/below",
	} {
		if got, err := follow(root, name); got != want || (err != nil) != (want == "") {
			t.Errorf("%s leads to %q, %v, want %q", name, got, err, want)
		}
	}
}
