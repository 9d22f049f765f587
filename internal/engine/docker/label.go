package docker

import (
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine"
)

// Labels of what is ours.
const (
	// labelOwner and labelSandbox are on each sandbox's container.
	labelOwner   = "dev.cloche.owner"
	labelSandbox = "dev.cloche.sandbox"
	// labelTry tells the containers of different Creates of one sandbox apart.
	labelTry = "dev.cloche.try"
	// labelRoot is on an image that was made of a root filesystem, and labelSource says
	// which file that was.
	labelRoot   = "dev.cloche.root"
	labelSource = "dev.cloche.source"
	// labelAgent is on the volume of an agent and on the container that keeps it.
	labelAgent = "dev.cloche.agent"
	// labelVolume is on a volume that outlives its sandboxes, and has its name. A volume
	// of one sandbox has that sandbox's labels.
	labelVolume = "dev.cloche.volume"
)

// containerName is the same for every try to make a sandbox, so that the daemon
// itself refuses a second one.
func containerName(p engine.Plan) string { return "cloche-" + p.Owner + "-" + p.ID }

// labels are those of a sandbox.
func labels(p engine.Plan, try string) map[string]string {
	return map[string]string{labelOwner: p.Owner, labelSandbox: p.ID, labelTry: try}
}

// withLabel finds what has a label.
func withLabel(key, value string) client.Filters {
	return make(client.Filters).Add("label", key+"="+value)
}
