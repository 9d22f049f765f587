//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// Subjects of the group against: this version and another, each with a daemon of its own.
const (
	versionExec   = "exec /bin/true, this version"
	otherExec     = "exec /bin/true, the other version"
	versionCreate = "create → first output, this version"
	otherCreate   = "create → first output, the other version"
	versionBuild  = "build of 20 small programs, this version"
	otherBuild    = "build of 20 small programs, the other version"
)

// buildLimit bounds one build.
const buildLimit = 5 * time.Minute

// smallBuild makes, compiles, links and runs programs, each in a directory of its own that
// is renamed and removed: work that is system calls for the most part.
const smallBuild = `set -e
cd "$(mktemp -d)"
i=0
while [ $i -lt 20 ]; do
	mkdir new
	echo "int main(void) { return $i - $i; }" > new/main.c
	mv new p$i
	cc -O0 -o p$i/main p$i/main.c
	p$i/main
	i=$((i+1))
done
ls p*/main | wc -l
rm -r p*
`

// versions times the daemon of this version against the daemon of another executable, in turn. It
// shows what a change costs that no row alone shows.
func (b *bench) versions(ctx context.Context) error {
	if b.against == "" {
		b.missing("another version", errors.New("-against names none"))
		return nil
	}
	ours, err := b.daemon(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "other")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	other, err := newAppIn(ctx, b, b.against, dir)
	if err != nil {
		return err
	}
	var subjects []subject
	for _, v := range []struct {
		app                 *app
		exec, create, build string
	}{{ours, versionExec, versionCreate, versionBuild}, {other, otherExec, otherCreate, otherBuild}} {
		sb, err := v.app.create(ctx)
		if err != nil {
			return fmt.Errorf("create with %s: %w", filepath.Base(v.app.bin), err)
		}
		b.defers(func() error { return sb.Remove(context.WithoutCancel(ctx)) })
		subjects = append(subjects,
			subject{name: v.exec, how: "Exec over the socket in a gVisor sandbox", row: 10, run: func(ctx context.Context) (measure, error) { return v.app.execTrue(ctx, sb, "/bin/true") }},
			subject{name: v.create, how: "Create over the socket and one exec; removed again, not timed", run: createAndEcho(v.app.client, v.app.spec())},
			subject{name: v.build, how: "20 times mkdir, mv, cc, run and rm in a gVisor sandbox", limit: buildLimit, run: func(ctx context.Context) (measure, error) { return buildSmall(ctx, sb) }},
		)
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return nil
}

// buildSmall times smallBuild in a sandbox.
func buildSmall(ctx context.Context, sb *client.Sandbox) (measure, error) {
	began := time.Now()
	res, err := sb.ExecWith(ctx, api.ExecRequest{Argv: []string{"sh", "-c", smallBuild}})
	took := time.Since(began)
	if err == nil && (!res.OK() || string(res.Stdout) != "20\n") {
		err = fmt.Errorf("the build ended with status %d: %s", res.ExitStatus(), tail(string(res.Stderr)))
	}
	return measure{Total: took}, err
}
