package docker

import (
	"context"
	"os"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
)

// Sharing says whether a daemon sees the files of this machine under the names that
// they have here.
type Sharing string

// What an operator may say of it. ShareAuto, which is also the empty one, finds out.
const (
	ShareAuto Sharing = "auto"
	ShareYes  Sharing = "yes"
	ShareNo   Sharing = "no"
)

// sharesFiles says whether the daemon at host sees the files of this machine.
func (e *Engine) sharesFiles(host string, info system.Info) bool {
	switch e.opts.SharesHostFS {
	case ShareYes:
		return true
	case ShareNo:
		return false
	}
	return isHere(host, info)
}

// isHere says whether a daemon is on this machine, by what it says of itself. One behind
// a socket of Linux is if its machine has this one's name and kernel: a socket may have
// been forwarded, or handed into a container. Others have a machine of their own, if
// only a virtual one.
func isHere(host string, info system.Info) bool {
	name, err := os.Hostname()
	return err == nil && strings.HasPrefix(host, "unix://") && info.Name == name && info.KernelVersion != "" && info.KernelVersion == kernelRelease()
}

// shares is sharesFiles of a daemon, which is asked once: a socket at which another
// machine answers later is found by the next Probe.
func (e *Engine) shares(ctx context.Context, d *daemon) (bool, error) {
	if known := d.shared.Load(); known != nil {
		return *known, nil
	}
	answer, err := d.Info(ctx, client.InfoOptions{})
	if err != nil {
		return false, err
	}
	shared := e.sharesFiles(d.host, answer.Info)
	d.shared.Store(&shared)
	return shared, nil
}
