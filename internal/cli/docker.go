package cli

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/cli/process"
)

// dockerVerbs are hidden verbs that have another name here.
func dockerVerbs(a *command.CLI) []*cobra.Command {
	hidden := func(use string, c *cobra.Command) *cobra.Command {
		c.Use, c.Hidden, c.SuggestFor, c.GroupID = use, true, nil, ""
		return c
	}
	return []*cobra.Command{
		hidden("images", image.ListCommand(a)), hidden("pull [flags] IMAGE", image.PullCommand(a)), hidden("rmi IMAGE...", image.RemoveCommand(a)),
		hidden("top SANDBOX", process.PsCommand(a)),
	}
}

// dockerWord is what leads on from a verb of Docker's that has no counterpart; false is
// any other word.
func dockerWord(word string) (hint string, ok bool) {
	hint, ok = map[string]string{
		"build":    "`cloche image build NAME DIRECTORY` builds from the Dockerfile in the directory",
		"compose":  "a sandbox is what a service is: `cloche create` makes one, `cloche start` runs a process in it, and `cloche job run` runs steps one after the other",
		"swarm":    "one daemon serves one machine; --host or CLOCHE_HOST names another one",
		"network":  "a sandbox has no network or one of its own: `cloche run --allow HOST` lets it reach a host, and `cloche egress` shows and changes what it may reach",
		"volume":   "`cloche workspace` keeps directories under a name; `--workspace NAME` gives one to a sandbox, and `--mount SRC:DST` a directory of this machine",
		"restart":  "a process restarts with `cloche start --restart always`; a sandbox that has ended does not run again: create another one with the same --workspace",
		"rename":   "a sandbox has its name from its create: `cloche create --name NAME`",
		"update":   "limits are those of the create; `cloche extend` changes how long a sandbox lives, and `cloche egress` what it may reach",
		"tag":      "an image has the name that it was pulled by, or that `cloche image import --name NAME` gave it",
		"push":     "Cloche sends images nowhere; `cloche snapshot create` keeps the files of a sandbox on this machine",
		"save":     "`cloche image export IMAGE` writes an image, and `cloche cp SANDBOX:/PATH -` the files of a sandbox",
		"import":   "`cloche image import FILE` takes archives and directories",
		"history":  "`cloche image inspect IMAGE` lists the layers",
		"search":   "ask the registry itself, and bring an image with `cloche image pull IMAGE`",
		"login":    "pulls use the logins in the Docker configuration (~/.docker/config.json) of the user that the daemon runs as: `docker login` writes it",
		"context":  "--host or CLOCHE_HOST names another daemon",
		"system":   "`cloche doctor` tells what works on this machine, `cloche status` whether sandboxes can be made, and `cloche prune`, `cloche snapshot prune` and `cloche image prune` free space",
		"plugin":   "`cloche doctor` lists the engines, which are compiled in",
		"bash":     "`cloche shell SANDBOX` opens a shell",
		"daemon":   "`cloche serve` is the daemon",
		"describe": "`cloche inspect SANDBOX` shows everything that is on record",
	}[dockerSynonym(word)]
	return hint, ok && hint != ""
}

// dockerSynonym is the word that stands for several.
func dockerSynonym(word string) string {
	switch word {
	case "buildx", "builder", "bake":
		return "build"
	case "stack", "service", "up", "down":
		return "compose"
	case "node":
		return "swarm"
	case "networks":
		return "network"
	case "volumes":
		return "volume"
	case "load":
		return "import"
	case "export":
		return "save"
	case "logout":
		return "login"
	case "manifest", "trust":
		return "history"
	case "sh":
		return "bash"
	case "dockerd":
		return "daemon"
	}
	return word
}

// foreignFlag leads on from flags of Docker's that have no counterpart.
func foreignFlag(err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	switch unknown.GetSpecifiedName() {
	case "privileged", "cap-add", "cap-drop", "security-opt", "device":
		return "what a program may do is the engine's and the policy's: `cloche policy explain` tells"
	case "gpus":
		return "sandboxes have no devices of this machine"
	case "entrypoint":
		return "write the command after --: it is executed as it is, without the image's entrypoint"
	case "hostname":
		return "--name is the host name inside too"
	case "P", "expose", "publish-all", "link":
		return "`cloche port open SANDBOX 8000` gives a port a URL, and `cloche port-forward SANDBOX 8080:80` makes one reachable here"
	case "restart":
		return "`cloche start --restart always SANDBOX -- COMMAND` starts a process again"
	case "platform":
		return "`cloche image pull --platform OS/ARCH IMAGE` fetches an image of another platform"
	}
	return ""
}
