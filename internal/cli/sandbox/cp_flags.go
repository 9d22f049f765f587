package sandbox

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// tarFlags are the flags of a copy of many files.
type tarFlags struct {
	exclude       []string
	owner         string
	atomic, clear bool
	copyLinks     bool
}

func (f *tarFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.exclude, "exclude", nil, "omit the `PATH`, relative to the copied directory, with everything below; literal, not a pattern (repeatable)")
	flags.BoolVar(&f.copyLinks, "copy-hard-links", false, "write a copy of a file instead of each hard link, which some programs refuse in a tar stream")
	flags.StringVar(&f.owner, "owner", "", `the owner of the files in the sandbox, "NAME|UID[:GID]", or "keep" for the numbers in a tar stream (default: the sandbox's user)`)
	flags.BoolVar(&f.atomic, "atomic", false, "put a directory or tar stream in place in the sandbox atomically")
	flags.BoolVar(&f.clear, "clear", false, "remove the existing files of the directory in the sandbox, as part of --atomic")
}

// check makes the paths clean and refuses what would have no effect.
func (f *tarFlags) check(in bool) error {
	for i, p := range f.exclude {
		p = filepath.ToSlash(p)
		clean := path.Clean(p)
		if p == "" || clean == "." || path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") {
			return api.Invalid("exclude", "--exclude %q is not a path below the directory", terminal.Clip(p)).
				WithHint(`write it relative to what is copied, such as .git or build/cache; there are no patterns`)
		}
		f.exclude[i] = clean
	}
	if !in && (f.owner != "" || f.atomic || f.clear) {
		return api.Invalid("dst", "--owner, --atomic and --clear are for copies into a sandbox").WithHint("leave them out")
	}
	if in && f.copyLinks {
		return api.Invalid("src", "--copy-hard-links is for copies out of a sandbox").WithHint("leave it out")
	}
	return command.CheckText("owner", f.owner)
}

func (f *tarFlags) out() api.TarOutOptions {
	return api.TarOutOptions{Exclude: f.exclude, CopyHardLinks: f.copyLinks}
}

// in are the options of an import. What is packed here leaves out by itself what
// is excluded; from a stream it is left out there.
func (f *tarFlags) in(stream bool) api.TarInOptions {
	o := api.TarInOptions{Owner: f.owner, Atomic: f.atomic, Clear: f.clear}
	if stream {
		o.Exclude = f.exclude
	}
	return o
}
