//go:build linux

package oci

import (
	"slices"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	tests := []struct {
		name, out string
		want      version
		ok        bool
	}{
		{"runc", "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n", version{Name: "runc", Number: "1.1.5+ds1"}, true},
		{"crun", "crun version 1.8.1\ncommit: f8a\n+SYSTEMD +LIBKRUN +YAJL\n", version{"crun", "1.8.1", []string{"SYSTEMD", "LIBKRUN", "YAJL"}}, true},
		{"nothing", "", version{}, false},
		{"usage", "usage: true [ignored arguments]\n", version{}, false},
		{"control characters", "runc version \x1b[31m1\n", version{}, false},
		{"a long word", "runc version " + strings.Repeat("9", 65), version{}, false},
		{"another order", "version runc 1.2\n", version{}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseVersion([]byte(test.out))
			if (err == nil) != test.ok {
				t.Fatalf("error %v", err)
			}
			if got.Name != test.want.Name || got.Number != test.want.Number || !slices.Equal(got.Features, test.want.Features) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestParseState(t *testing.T) {
	tests := []struct {
		name, out string
		pid       int // 0: refused
	}{
		{"runc", `{"ociVersion":"1.0.2-dev","id":"sandbox","pid":902,"status":"created","bundle":"/b"}`, 902},
		{"another sandbox", `{"id":"other","pid":902,"status":"created"}`, 0},
		{"no id", `{"pid":902,"status":"created"}`, 0},
		{"the machine's first process", `{"id":"sandbox","pid":1,"status":"created"}`, 0},
		{"a group of processes", `{"id":"sandbox","pid":-902,"status":"created"}`, 0},
		{"no process", `{"id":"sandbox","status":"running"}`, 0},
		{"a number that none has", `{"id":"sandbox","pid":99999999,"status":"running"}`, 0},
		{"a text", `{"id":"sandbox","pid":"902","status":"created"}`, 0},
		{"an unknown state", `{"id":"sandbox","pid":902,"status":"fine"}`, 0},
		{"two answers", `{"id":"sandbox","pid":902,"status":"created"}{}`, 0},
		{"garbage", "\x00\xff", 0},
		{"nothing", "", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseState([]byte(test.out))
			if (err == nil) != (test.pid != 0) || got.PID != test.pid {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func FuzzParseVersion(f *testing.F) {
	f.Add([]byte("runc version 1.1.5\n+A"))
	f.Fuzz(func(t *testing.T, out []byte) {
		v, err := parseVersion(out)
		if err == nil && (!plain(v.Name) || !plain(v.Number) || len(v.Features) > 64) {
			t.Errorf("took %+v", v)
		}
	})
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"id":"sandbox","pid":902,"status":"created"}`))
	f.Add([]byte(`{"id":"sandbox","pid":0,"status":"stopped"}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		s, err := parseState(out)
		if err != nil {
			return
		}
		if s.ID != container || s.PID < 0 || s.PID > 1<<22 || s.PID < 2 && (s.Status == "created" || s.Status == "running") {
			t.Errorf("took %+v", s)
		}
	})
}
