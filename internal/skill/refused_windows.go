package skill

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche"
)

// A skill is a directory of the host's that sandboxes see, and those of a daemon on
// Windows run on another machine, be it a virtual one: nothing is kept for them.

func refused() error {
	return cloche.Errorf(cloche.CodeUnsupported, "on this system sandboxes run on another machine, which sees no skills that are kept here").
		WithHint("put the files into the sandbox or into its image, or run the daemon on Linux")
}

// List is refused.
func (*Store) List(context.Context, string) (cloche.SkillList, error) {
	return cloche.SkillList{}, refused()
}

// Get is refused.
func (*Store) Get(context.Context, string, string) (cloche.Skill, error) {
	return cloche.Skill{}, refused()
}

// Scan is refused.
func (*Store) Scan(context.Context, string, string) (cloche.Skill, error) {
	return cloche.Skill{}, refused()
}

// Look is refused.
func Look(context.Context, Source) (cloche.Skill, error) { return cloche.Skill{}, refused() }

// Create is refused.
func (*Store) Create(context.Context, string, cloche.SkillSpec, *Source, int64) (cloche.Skill, error) {
	return cloche.Skill{}, refused()
}

// Update is refused.
func (*Store) Update(context.Context, string, string, cloche.SkillChange) (cloche.Skill, error) {
	return cloche.Skill{}, refused()
}

// Remove is refused.
func (*Store) Remove(context.Context, string, string) error { return refused() }

// Place is refused.
func (*Store) Place(context.Context, string, string) (Place, error) { return Place{}, refused() }

// Places is refused.
func (*Store) Places(context.Context, string) ([]Place, error) { return nil, refused() }

// Files is refused.
func (*Store) Files(context.Context, string, string, FileOptions) (cloche.SkillFileList, error) {
	return cloche.SkillFileList{}, refused()
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
func (*Store) Preview(context.Context, string, io.Reader, cloche.SkillArchive) (cloche.SkillPreviewList, error) {
	return cloche.SkillPreviewList{}, refused()
}

// Install is refused.
func (*Store) Install(context.Context, string, io.Reader, cloche.SkillArchive, int64) (cloche.SkillList, error) {
	return cloche.SkillList{}, refused()
}

// Signed is refused.
func (*Store) Signed(context.Context, string, string, []Signer) (string, error) {
	return "", refused()
}
