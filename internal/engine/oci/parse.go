//go:build linux

package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// version is what a runtime says of itself.
type version struct {
	// Name is the program's own name, the first word of the first line.
	Name string
	// Number is its version.
	Number string
	// Features are the words with a plus before them.
	Features []string
}

// parseVersion reads the output of --version: a line with a name, the word "version"
// and the number, and lines that may be anything. It is foreign.
func parseVersion(out []byte) (version, error) {
	first, rest, _ := strings.Cut(string(out), "\n")
	f := strings.Fields(first)
	if len(f) < 3 || f[1] != "version" || !plain(f[0]) || !plain(f[2]) {
		return version{}, errors.New("what it says of its version is no version")
	}
	v := version{Name: f[0], Number: f[2]}
	for word := range strings.FieldsSeq(rest) {
		if name, ok := strings.CutPrefix(word, "+"); ok && plain(name) && len(v.Features) < 64 {
			v.Features = append(v.Features, name)
		}
	}
	return v, nil
}

// plain is a short word without anything that could act on a terminal.
func plain(s string) bool {
	for _, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-~:", r)
		if !ok {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// state is what a runtime says of a sandbox.
type state struct {
	ID     string
	Status string
	PID    int
}

// parseState reads the output of the command state. It is foreign: the number of a
// process is valid only if it is greater than 1.
func parseState(out []byte) (state, error) {
	var s struct {
		ID     *string `json:"id"`
		Status *string `json:"status"`
		PID    *int    `json:"pid"`
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return state{}, fmt.Errorf("what it says of the state is no JSON: %w", err)
	}
	if s.ID == nil || s.Status == nil || *s.ID != container {
		return state{}, errors.New("what it says of the state is about nothing that was asked for")
	}
	st := state{ID: *s.ID, Status: *s.Status}
	switch st.Status {
	case "creating", "created", "running", "paused", "stopped":
	default:
		return state{}, errors.New("it names a state that there is not")
	}
	if s.PID != nil {
		st.PID = *s.PID
	}
	const maxPID = 1 << 22 // the kernel's own bound
	if st.PID < 0 || st.PID > maxPID || (st.Status == "created" || st.Status == "running") && st.PID < 2 {
		return state{}, errors.New("it names a process that there cannot be")
	}
	return st, nil
}
