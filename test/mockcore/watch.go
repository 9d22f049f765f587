package mockcore

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Watches are watches of directories that each have one new file.
type Watches struct{}

// WatchFiles reports that it is ready, then the creation of the file "new", and then that the directory
// is gone. The directory "/missing" does not exist, and "/broken" is lost after the first change.
func (Watches) WatchFiles(_ context.Context, _ core.Caller, _ string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error {
	if at.Path == "/missing" {
		return noFile(at.Path)
	}
	created := api.FileChange{Kind: api.FileCreate, Name: "new"}
	if o.Entries {
		created.Info = &api.FileInfo{Name: "new", Type: api.TypeFile, ModTime: Epoch()}
	}
	for _, c := range []api.FileChange{{Kind: api.FileReady}, created} {
		if err := fn(c); err != nil {
			return err
		}
	}
	if at.Path == "/broken" {
		return api.Errorf(api.CodeSandboxLost, "the sandbox died")
	}
	return nil
}
