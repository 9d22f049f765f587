package job_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/job"
)

// A job whose record is lost is kept and named; one that never began goes.
func TestLostRecord(t *testing.T) {
	for how, hurt := range map[string]func(string) error{
		"missing": os.Remove,
		"empty":   func(file string) error { return os.Truncate(file, 0) },
	} {
		t.Run(how, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "jobs")
			s, err := job.Open(job.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Begin(api.Job{ID: "pg-1", Spec: &api.JobSpec{}}); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, ".new-pg-2"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := hurt(filepath.Join(dir, "pg-1", "job.json")); err != nil {
				t.Fatal(err)
			}
			if s, err = job.Open(job.Options{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if len(s.Unreadable) != 1 || s.Unreadable[0] != "jobs/pg-1/job.json" {
				t.Errorf("unreadable: %v", s.Unreadable)
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) != 1 || left[0].Name() != "pg-1" {
				t.Errorf("left: %v, %v", left, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "pg-1", "spec.json")); err != nil {
				t.Error(err)
			}
		})
	}
}
