package process

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestRenew: which processes a start of their sandbox starts again, and what becomes of their records.
func TestRenew(t *testing.T) {
	end := time.Now()
	before, after := end.Add(-time.Second), end.Add(time.Second)
	for name, c := range map[string]struct {
		state    api.ProcessState
		at       *time.Time
		declared bool
		want     bool
	}{
		"ended by the stop":    {api.ProcessExited, &after, true, true},
		"unknown":              {api.ProcessUnknown, &before, true, true},
		"over before":          {api.ProcessExited, &before, true, false},
		"failed before":        {api.ProcessFailed, &before, true, false},
		"without a policy":     {api.ProcessExited, &after, false, false},
		"not settled any more": {api.ProcessRunning, nil, true, true},
	} {
		dir := filepath.Join(t.TempDir(), "web")
		for _, d := range []string{dir, dir + ".1"} {
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		write := func(file string, v any) {
			data, err := json.Marshal(v)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write(processRecordFile, processRecord{Version: processRecordVersion, Confirmed: true, Process: api.Process{ExecID: "web", State: c.state, EndedAt: c.at}})
		if c.declared {
			write(declaredFile, api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "web", Argv: []string{"serve"}}})
		}
		spec, ok, err := renew(dir, end)
		if ok != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
		if !ok {
			continue
		}
		if spec.ExecID != "web" || len(spec.Argv) != 1 {
			t.Errorf("%s: %+v", name, spec)
		}
		p, err := readProcess(dir + ".2")
		if err != nil || p.id != "web.2" {
			t.Errorf("%s: the record of the earlier run: %+v, %v", name, p, err)
		}
		if _, again, err := renew(dir+".2", end); again || err != nil {
			t.Errorf("%s: the earlier run is started again: %v", name, err)
		}
	}
}
