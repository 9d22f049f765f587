package skill

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche/api"
)

// A skill is a directory of the host that sandboxes see, and the sandboxes of a daemon on
// Windows run on another machine, be it a virtual one: nothing is kept for them.

func refused() error {
	return api.Errorf(api.CodeUnsupported, "on this system sandboxes run on another machine, which sees no skills that are kept here").
		WithHint("put the files into the sandbox or into its image, or run the daemon on Linux")
}

// List is refused.
func (*Store) List(context.Context, string) (api.SkillList, error) {
	return api.SkillList{}, refused()
}

// Get is refused.
func (*Store) Get(context.Context, string, string) (api.Skill, error) {
	return api.Skill{}, refused()
}

// Scan is refused.
func (*Store) Scan(context.Context, string, string) (api.Skill, error) {
	return api.Skill{}, refused()
}

// Look is refused.
func Look(context.Context, Source) (api.Skill, error) { return api.Skill{}, refused() }

// Create is refused.
func (*Store) Create(context.Context, string, api.SkillSpec, *Source, int64) (api.Skill, error) {
	return api.Skill{}, refused()
}

// Update is refused.
func (*Store) Update(context.Context, string, string, api.SkillChange) (api.Skill, error) {
	return api.Skill{}, refused()
}

// Remove is refused.
func (*Store) Remove(context.Context, string, string) error { return refused() }

// Place is refused.
func (*Store) Place(context.Context, string, string) (Place, error) { return Place{}, refused() }

// Places is refused.
func (*Store) Places(context.Context, string) ([]Place, error) { return nil, refused() }

// Files is refused.
func (*Store) Files(context.Context, string, string, FileOptions) (api.SkillFileList, error) {
	return api.SkillFileList{}, refused()
}

// ReadFile is refused.
func (*Store) ReadFile(context.Context, string, string, string) ([]byte, error) {
	return nil, refused()
}

// WriteFile is refused.
func (*Store) WriteFile(context.Context, string, string, string, []byte, int64) error {
	return refused()
}

// RemoveFile is refused.
func (*Store) RemoveFile(context.Context, string, string, string) error { return refused() }

// Preview is refused.
func (*Store) Preview(context.Context, string, io.Reader, api.SkillArchive) (api.SkillPreviewList, error) {
	return api.SkillPreviewList{}, refused()
}

// Install is refused.
func (*Store) Install(context.Context, string, io.Reader, api.SkillArchive, int64) (api.SkillList, error) {
	return api.SkillList{}, refused()
}

// Signed is refused.
func (*Store) Signed(context.Context, string, string, []Signer) (string, error) {
	return "", refused()
}
