package core

import (
	"context"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Limits of the lists of paths in a tar call.
const (
	maxTarPaths     = 4096
	maxTarPathBytes = 256 << 10
)

// TarOut writes a directory or file as tar.
func (s *Service) TarOut(ctx context.Context, caller Caller, ref, path string, o api.TarOutOptions, w io.Writer) (api.TarReport, error) {
	var err error
	if o.Exclude, err = tarPaths("exclude", o.Exclude); err != nil {
		return api.TarReport{}, err
	}
	return s.tar(ctx, caller, policy.VerbTarOut, ref, path, func() (api.TarReport, error) {
		return s.opts.Sandboxes.TarOut(ctx, caller, ref, path, o, w)
	})
}

// Tree lists the filesystem that the directory top of a sandbox lies on, for builds of images.
func (s *Service) Tree(ctx context.Context, caller Caller, ref, top string, fn func(agent.TreeEntry) error) error {
	return s.opts.Sandboxes.Tree(ctx, caller, ref, top, fn)
}

// PackOnly writes a tar of entries below top, for builds of images.
func (s *Service) PackOnly(ctx context.Context, caller Caller, ref, top string, names []string, w io.Writer) (api.TarReport, error) {
	return s.tar(ctx, caller, policy.VerbTarOut, ref, top, func() (api.TarReport, error) {
		return s.opts.Sandboxes.PackOnly(ctx, caller, ref, top, names, w)
	})
}

// TarIn unpacks a tar into a directory.
func (s *Service) TarIn(ctx context.Context, caller Caller, ref, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	if err := checkTarIn(&o); err != nil {
		return api.TarReport{}, err
	}
	return s.tar(ctx, caller, policy.VerbTarIn, ref, path, func() (api.TarReport, error) {
		return s.opts.Sandboxes.TarIn(ctx, caller, ref, path, o, r)
	})
}

func checkTarIn(o *api.TarInOptions) (err error) {
	if o.Exclude, err = tarPaths("exclude", o.Exclude); err != nil {
		return err
	}
	if o.Keep, err = tarPaths("keep", o.Keep); err != nil {
		return err
	}
	if len(o.Keep) > 0 && !o.Clear {
		return api.Invalid("keep", "there are paths to keep, and nothing is cleared").WithHint("set clear, or leave keep out: what the archive does not name stays")
	}
	switch o.Links {
	case "", api.LinksKeep, api.LinksDrop, api.LinksReject:
	default:
		return api.Invalid("external_symlinks", "external_symlinks is %.40q", string(o.Links)).
			WithHint("want %s, %s or %s", api.LinksKeep, api.LinksDrop, api.LinksReject)
	}
	if o.Owner == "" || o.Owner == api.OwnerKeep {
		return nil
	}
	return policy.CheckUser("owner", o.Owner)
}

// tarPaths checks the paths of a list, which are literal and relative to the directory, and cleans
// them.
func tarPaths(field string, list []string) ([]string, error) {
	if len(list) > maxTarPaths {
		return nil, api.Invalid(field, "there are %d paths in %s", len(list), field).WithHint("at most %d; name the directories that they are in", maxTarPaths)
	}
	total := 0
	var out []string
	for _, p := range list {
		clean := path.Clean(p)
		if total += len(p); total > maxTarPathBytes {
			return nil, api.Invalid(field, "the paths in %s have more than %d bytes", field, maxTarPathBytes).WithHint("name the directories that they are in")
		}
		if p == "" || clean == "." || strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) || slices.Contains(strings.Split(p, "/"), "..") {
			return nil, api.Invalid(field, "%s %.200q is not a path below the directory", field, p).
				WithHint(`write it relative to the directory and without "..", such as "node_modules" or ".git"; there are no patterns`)
		}
		out = append(out, clean)
	}
	return out, nil
}

// tar runs an import or export. It is recorded first.
func (s *Service) tar(ctx context.Context, caller Caller, verb policy.Verb, ref, path string, do func() (api.TarReport, error)) (report api.TarReport, err error) {
	d := details{"path": path}
	err = s.inSandbox(ctx, caller, verb, ref, d, func() error {
		if report, err = do(); err == nil {
			d["entries"], d["bytes"], d["sha256"] = strconv.FormatInt(report.Entries, 10), strconv.FormatInt(report.Bytes, 10), report.SHA256
		}
		return err
	})
	return report, err
}
