package files

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// TarOut writes a directory or file as tar.
func (f *Files) TarOut(ctx context.Context, caller policy.Caller, ref, path string, o api.TarOutOptions, w io.Writer) (api.TarReport, error) {
	return onSandbox(ctx, f, caller, policy.VerbTarOut, ref, func(ctx context.Context, s Sandbox, c *agent.Client) (api.TarReport, error) {
		sum := sha256.New()
		w := io.MultiWriter(sum, w)
		report, packed, err := packHost(s, path, o, w)
		if !packed {
			report, err = c.TarOut(ctx, path, o, w)
		}
		return summed(report, sum, err)
	})
}

// Tree lists the filesystem that the directory top lies on.
func (f *Files) Tree(ctx context.Context, caller policy.Caller, ref, top string, fn func(agent.TreeEntry) error) error {
	_, err := onAgent(ctx, f, caller, policy.VerbTarOut, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (none, error) {
		return none{}, c.Tree(ctx, top, fn)
	})
	return err
}

// PackOnly writes a tar of entries below top, which do not include what is in them.
func (f *Files) PackOnly(ctx context.Context, caller policy.Caller, ref, top string, names []string, w io.Writer) (api.TarReport, error) {
	return onAgent(ctx, f, caller, policy.VerbTarOut, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.TarReport, error) {
		sum := sha256.New()
		report, err := c.PackOnly(ctx, top, names, io.MultiWriter(sum, w))
		return summed(report, sum, err)
	})
}

// TarIn unpacks a tar into a directory, which is made when it is missing.
func (f *Files) TarIn(ctx context.Context, caller policy.Caller, ref, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	return onSandbox(ctx, f, caller, policy.VerbTarIn, ref, func(ctx context.Context, s Sandbox, c *agent.Client) (api.TarReport, error) {
		o.Owner = cmp.Or(o.Owner, s.Info().User)
		sum := sha256.New()
		report, err := f.unpack(ctx, s, c, path, o, io.TeeReader(r, sum))
		return summed(report, sum, err)
	})
}

// summed adds the digest of what went by here: the agent's word on it would be
// the sandbox's.
func summed(report api.TarReport, sum hash.Hash, err error) (api.TarReport, error) {
	if err != nil {
		return report, err
	}
	report.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return report, nil
}
