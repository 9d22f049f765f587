package template

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
)

// Refusal says why forks of a sandbox would share what only one sandbox can have, or get the value of a secret.
func Refusal(sb api.Sandbox, secrets []record.Secret) error {
	refused := func(format string, args ...any) *api.Error {
		return api.Errorf(api.CodeUnsupported, "sandbox %s cannot be forked: "+format, append([]any{sb.Name}, args...)...)
	}
	shared := func(dir string) *api.Error {
		return refused("it can write to the directory %s of the host, in which the locks of its forks would not hold", dir)
	}
	ws := sb.Workspace
	switch {
	case ws.Name != "":
		return refused("one sandbox has the named workspace %q at a time", ws.Name).WithHint("fork a sandbox with a private workspace")
	case ws.Volume:
		return refused("its workspace is a volume of the engine's").WithHint("use another engine")
	case ws.Layered:
		return refused("its workspace is layered").WithHint("fork a sandbox with a private workspace that is not layered")
	case ws.Dir != "" && !ws.ReadOnly:
		return shared(ws.Dir).WithHint("make the workspace read-only, or private")
	}
	for _, m := range sb.Mounts {
		if !m.ReadOnly {
			return shared(m.Source).WithHint("mount it read-only")
		}
	}
	for _, h := range secrets {
		if h.Mode == api.SecretEnv {
			return refused("its programs have the value of the secret %q in their environment", h.Name).
				WithHint("use a placeholder, which is the default mode; such a sandbox can be suspended")
		}
	}
	return nil
}
