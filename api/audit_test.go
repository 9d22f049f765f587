package api_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestCurrentVerb(t *testing.T) {
	for old, want := range map[string]string{
		"run_program": "run_job", "list_programs": "list_jobs", "get_program": "get_job", "cancel_program": "cancel_job",
		"continue_program": "continue_job", "run_job": "run_job", "exec": "exec", "": "",
	} {
		if got := api.CurrentVerb(old); got != want {
			t.Errorf("%q is now %q, want %q", old, got, want)
		}
	}
}
