//go:build linux

package process

import (
	"slices"
	"testing"
)

// TestHomeInPath: an image names directories of homes before it knows whose.
func TestHomeInPath(t *testing.T) {
	for _, c := range []struct {
		env        []string
		path, want string
	}{
		{[]string{"HOME=/root/", "PATH=~/.local/bin:/bin"}, "/root/.local/bin:/bin", "PATH=/root/.local/bin:/bin"},
		{[]string{"PATH=~/.local/bin:/bin"}, "/bin", "PATH=/bin"},
		{[]string{"HOME=relative", "PATH=~/.local/bin:/bin:~"}, "/bin:~", "PATH=/bin:~"},
		{[]string{"HOME=/h"}, defaultPath, "HOME=/h"},
		{[]string{"HOME=/h", "PATH="}, "", "PATH="},
	} {
		env := slices.Clone(c.env)
		if got := expandPath(env); got != c.path || env[len(env)-1] != c.want {
			t.Errorf("%q: %q, %q", c.env, got, env)
		}
	}
}
