package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
)

// declaredFile is what a process with a restart policy was started with, in its directory: when its sandbox is
// started again, the process is too. It can have values of the environment, as the record of the sandbox.
const declaredFile = "declared.json"

// declare keeps what a process with a restart policy was started with, unless there is the value of a secret in it.
func (m *Runner) declare(p *process, permit policy.ProcessPermit) error {
	spec := permit.Spec()
	if spec.Restart == nil || spec.Restart.Policy == api.RestartNever {
		return nil
	}
	for _, text := range slices.Concat(spec.Argv, slices.Collect(maps.Values(spec.Env)), []string{spec.Shell, spec.Python, string(spec.Stdin)}) {
		if m.o.Redacted(api.Process{Reason: text}).Reason != text {
			m.o.Logger.Info("a process is not started again with its sandbox: there is the value of a secret in its command", "process", p.id)
			return nil
		}
	}
	spec.ExecID, spec.Naming = p.id, api.Naming{}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode process %s: %w", p.id, err)
	}
	return hostfile.ReplaceIn(p.dir, declaredFile, data)
}

// Renew returns the processes of a sandbox that its start starts again: those with a restart policy that were alive
// when its end began. What is on record of each is renamed, from ID to ID.N, so that the ID is free. Renew comes
// before [Table.Adopt].
func (t *Table) Renew(endBegan time.Time) []api.ProcessSpec {
	dirs, err := processDirs(filepath.Join(t.dir, Records))
	if err != nil {
		t.all.o.Logger.Error("list processes to start again", "sandbox", t.names.ID, "error", err)
	}
	var out []api.ProcessSpec
	for _, dir := range dirs {
		spec, ok, err := renew(dir, endBegan)
		if err != nil {
			t.all.o.Logger.Error("start a process again", "sandbox", t.names.ID, "process", filepath.Base(dir), "error", err)
		}
		if ok {
			out = append(out, spec)
		}
	}
	return out
}

// renew reads what the process of a directory was started with, and renames the directory.
func renew(dir string, endBegan time.Time) (spec api.ProcessSpec, ok bool, err error) {
	data, err := os.ReadFile(filepath.Join(dir, declaredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return spec, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err != nil {
		return spec, false, err
	}
	p, err := readProcess(dir)
	if err != nil {
		return spec, false, err
	}
	if at := p.rec.EndedAt; p.rec.State.Ended() && p.rec.State != api.ProcessUnknown && at != nil && at.Before(endBegan) {
		return spec, false, nil // it was over
	}
	for n := 1; ; n++ {
		to := dir + "." + strconv.Itoa(n)
		if !api.ValidName(filepath.Base(to)) {
			return spec, false, fmt.Errorf("rename record: %q is too long", filepath.Base(to))
		}
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, declaredFile)); err != nil {
			return spec, false, err
		}
		return spec, true, os.Rename(dir, to)
	}
}

// isRun reports whether a directory is of an earlier run of the process.
func isRun(dir, id string) bool {
	n, ok := strings.CutPrefix(filepath.Base(dir), id+".")
	_, err := strconv.ParseUint(n, 10, 31)
	return ok && err == nil
}
