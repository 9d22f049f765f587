//go:build linux

package gvisor

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	sentry "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/cloche-dev/cloche/internal/engine"
)

// TestCalls compares what is told a sentry with what gVisor itself would tell it.
func TestCalls(t *testing.T) {
	for ours, theirs := range map[string]string{
		callStart: boot.ContMgrRootContainerStart, callSetNetwork: boot.ContMgrSetNetworkArgs, callPortForward: boot.ContMgrPortForward,
		callPause: boot.ContMgrPause, callResume: boot.ContMgrResume, callTarLayer: boot.FsTarRootfsUpperLayer,
		callCheckpoint: boot.ContMgrCheckpoint, callRestore: boot.ContMgrRestore,
	} {
		if ours != theirs {
			t.Errorf("the call %s is %s", ours, theirs)
		}
	}
	link := &engine.Link{
		Guest: os.Stdin, MTU: 1500, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Address: netip.MustParsePrefix("10.88.0.2/24"),
		Gateway: netip.MustParseAddr("10.88.0.1"), GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
	gateway, everywhere := net.IPv4(10, 88, 0, 1), net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	linked := &boot.CreateLinksAndRoutesArgs{
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: linkName, MTU: 1500, NumChannels: 1, LinkAddress: link.MAC, Addresses: []boot.IPWithPrefix{{Address: net.IPv4(10, 88, 0, 2), PrefixLen: 24}},
			Routes:    []boot.Route{{Destination: net.IPNet{IP: net.IPv4(10, 88, 0, 0), Mask: net.CIDRMask(24, 32)}}},
			Neighbors: []boot.Neighbor{{IP: gateway, HardwareAddr: link.GatewayMAC}}, RXChecksumOffload: true, TXChecksumOffload: true,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: linkName, Route: boot.Route{Destination: everywhere, Gateway: gateway}},
	}
	for name, c := range map[string]struct{ ours, theirs any }{
		"port": {&portForward{ContainerID: "c", Port: 7}, &boot.PortForwardOpts{ContainerID: "c", Port: 7}},
		"tar":  {&tarLayer{ContainerID: "c"}, &sentry.TarRootfsUpperLayerOpts{ContainerID: "c"}},
		"checkpoint": {
			&checkpointing{Metadata: uncompressed(), ExcludeZeroPages: true, HavePagesFile: true, Resume: true},
			&sentry.SaveOpts{Metadata: statefile.CompressionLevelNone.ToMetadata(), AppMFExcludeCommittedZeroPages: true, HavePagesFile: true, Resume: true},
		},
		"restore":  {&restoration{HavePagesFile: true}, &boot.RestoreOpts{HavePagesFile: true}},
		"loopback": {networkArgs(nil), &boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}}},
		"link":     {networkArgs(link), linked},
	} {
		// Both as a sentry decodes them, ours without a field that it does not have.
		decoded := func(v any, strict bool) any {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out := reflect.New(reflect.TypeOf(c.theirs).Elem()).Interface()
			d := json.NewDecoder(strings.NewReader(string(b)))
			if strict {
				d.DisallowUnknownFields()
			}
			if err := d.Decode(out); err != nil {
				t.Fatalf("%s: %s: %v", name, b, err)
			}
			return out
		}
		if ours, theirs := decoded(c.ours, true), decoded(c.theirs, false); !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%s: %+v, want %+v", name, ours, theirs)
		}
	}
}

// TestSpecIsGVisors compares capabilities and the flag of the mounts with gVisor's.
func TestSpecIsGVisors(t *testing.T) {
	ours, theirs := allCapabilities().Bounding, specutils.AllCapabilities().Bounding
	slices.Sort(ours)
	slices.Sort(theirs)
	if !slices.Equal(ours, theirs) {
		t.Errorf("capabilities %v, want %v", ours, theirs)
	}
	erofs, gofer := specutils.GoferMountConf{Lower: specutils.Erofs}, specutils.GoferMountConf{Lower: specutils.Lisafs}
	for name, c := range map[string]struct {
		plan engine.Plan
		root specutils.GoferMountConf
	}{
		"usual":     {engine.Plan{}, specutils.GoferMountConf{Lower: specutils.Erofs, Upper: specutils.AnonOverlay}},
		"bounded":   {engine.Plan{Limits: engine.Limits{DiskBytes: 1 << 20}}, specutils.GoferMountConf{Lower: specutils.Erofs, Upper: specutils.AnonOverlay, Size: "1048576"}},
		"read-only": {engine.Plan{Root: engine.Root{ReadOnly: true}, Limits: engine.Limits{DiskBytes: 1}}, specutils.GoferMountConf{Lower: specutils.Erofs, Upper: specutils.MemoryOverlay}},
	} {
		c.plan.Mounts = make([]engine.Mount, 2)
		want := specutils.GoferMountConfFlags{c.root, erofs, gofer, gofer}
		if got := mountConfs(c.plan); got != want.String() {
			t.Errorf("%s: %s, want %s", name, got, want.String())
		}
	}
}
