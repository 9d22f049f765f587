package snapshot

import (
	"io"

	"github.com/cloche-dev/cloche/api"
)

// OverRation is the error about a snapshot that is larger than what its tenant has left.
func OverRation() error {
	e := api.Errorf(api.CodeNoCapacity, "the snapshot is larger than what the tenant may still keep of snapshots")
	e.Rule = "max_snapshot_bytes_per_tenant"
	return e.WithHint("remove a snapshot with: cloche snapshot rm NAME; or files that need not be kept")
}

// Rationed writes at most Left bytes to W, and counts them in Written. More is the error [OverRation].
type Rationed struct {
	W             io.Writer
	Left, Written int64
}

// Write implements io.Writer.
func (r *Rationed) Write(p []byte) (int, error) {
	if int64(len(p)) > r.Left {
		return 0, OverRation()
	}
	n, err := r.W.Write(p)
	r.Left -= int64(n)
	r.Written += int64(n)
	return n, err
}
