//go:build linux

package gvisor

import (
	"cmp"

	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// record is all there is to know about an instance in order to find it again
// or to remove it. It is also its State. What has omitempty is not in those that
// the first builds wrote.
type record struct {
	lifecycle.Head
	Port   int      `json:"port"`
	Sentry pidfd.ID `json:"sentry"`
	Gofer  pidfd.ID `json:"gofer,omitzero"`
	// Late is the gofer of the mounts that came when a booted sandbox was claimed.
	Late pidfd.ID `json:"late,omitzero"`
	// Container is what the sentry calls the sandbox; empty is ID.
	Container string `json:"container,omitempty"`
	// GVisor is the version of gVisor that the sentry is.
	GVisor string `json:"gvisor,omitempty"`
	// Executable is the hash of the executable that is kept for it.
	Executable string `json:"executable,omitempty"`
	// Attached: it dies with the process that created it.
	Attached bool `json:"attached,omitempty"`
}

// blank is the record of an instance of which only the names are known.
func blank(h lifecycle.Head) record { return record{Head: h} }

func newRecords(dir string) lifecycle.Records[record] {
	return lifecycle.Records[record]{Dir: dir, Blank: blank}
}

// processes are the processes of the record that can still be there.
func (rec record) processes() []pidfd.ID {
	if rec.Outlived() {
		return nil
	}
	return []pidfd.ID{rec.Sentry, rec.Gofer, rec.Late}
}

// container is what the sentry calls the sandbox.
func (rec record) container() string { return cmp.Or(rec.Container, rec.ID) }

// recorded are the hashes of the executables that the instances of all owners
// were started from.
func (e *Engine) recorded() ([]string, error) {
	recs, err := e.records.All()
	var hashes []string
	for _, rec := range recs {
		if rec.Executable != "" {
			hashes = append(hashes, rec.Executable)
		}
	}
	return hashes, err
}
