package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/config"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/internal/ingress"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/rulefile"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
)

// The keys of a daemon's settings.
const (
	keyHome      = "home"
	keySettings  = "settings_file"
	keyPolicy    = "policy_file"
	keyListen    = "listen"
	keyToken     = "token"
	keyHosts     = "hosts"
	keyOrigins   = "origins"
	keyTLSCert   = "tls.cert"
	keyTLSKey    = "tls.key"
	keyLogFormat = "log.format"
	keyLogLevel  = "log.level"

	keyDockerHost    = "docker.host"
	keyDockerCerts   = "docker.certs"
	keyDockerRuntime = "docker.runtime"
	keyDockerTier    = "docker.runtime_tier"
	keyDockerShares  = "docker.shares_host_fs"
	keyOCIRuntime    = "oci.runtime"
	keyPodmanHost    = "podman.host"
	keyPodmanRuntime = "podman.runtime"
	keyPodmanTier    = "podman.runtime_tier"
	keyPodmanShares  = "podman.shares_host_fs"
	keyNsjailPath    = "nsjail.path"

	// How many sandboxes of one kind are kept ready, and how much memory they have at most.
	keyPoolFloor   = "pool.floor"
	keyPoolCeiling = "pool.ceiling"
	keyPoolMemory  = "pool.memory"

	// How the memory of suspended sandboxes and snapshots is stored.
	keyCheckpointKey   = "checkpoints.key_file"
	keyCheckpointAfter = "checkpoints.compress_after"

	// How much memory of the machine stays available: with less, idle sandboxes are suspended.
	keyAvailable = "memory.available"

	// How many sandboxes are made at once, and how many may wait for that.
	keyMaxStarting = "max_starting"
	keyMaxQueued   = "max_queued"

	// How long requests may take, and an agent that is waited for be silent.
	keyDeadlineCall     = "deadlines.call"
	keyDeadlineChange   = "deadlines.change"
	keyDeadlineWork     = "deadlines.work"
	keyDeadlineTransfer = "deadlines.transfer"
	keyDeadlineAgent    = "deadlines.agent"

	// Where and under which URL ports of sandboxes are served.
	keyPortsListen = "ports.listen"
	keyPortsURL    = "ports.url"
	keyPortsCert   = "ports.tls.cert"
	keyPortsKey    = "ports.tls.key"

	// keyBoxListen has the daemon serve LangBot too.
	keyBoxListen = "box.listen"

	// These have the daemon serve clients of E2B too.
	keyE2BListen  = "e2b.listen"
	keyE2BProfile = "e2b.profile"
	keyE2BAllow   = "e2b.allow"
	keyE2BDomain  = "e2b.domain"

	// These name the service of the engine e2b.
	keyE2BKey        = "e2b.api_key"
	keyE2BURL        = "e2b.api_url"
	keyE2BSandboxURL = "e2b.sandbox_url"
	keyE2BTemplate   = "e2b.template"
	keyE2BLifetime   = "e2b.lifetime"
	keyE2BNetworkOff = "e2b.network_off"
	keyE2BHostMounts = "e2b.host_mounts"
)

// The values of keyE2BNetworkOff: whether the service must confirm that a sandbox has no network.
const (
	networkConfirmed = "confirmed"
	networkAssumed   = "assumed"
)

// DefaultPoolCeiling is how many sandboxes of one kind are kept ready at most by default: twice as many
// as a user of two processors asks for at once.
const DefaultPoolCeiling = 4

// defaultPoolMemory is a 32nd of the machine's memory, and 512 MiB at most.
func defaultPoolMemory() int64 { return min(512<<20, hostfile.Memory()/32) }

// defaultCompressAfter is when the memory of a suspended sandbox is compressed: one that is used again soon is not.
const defaultCompressAfter = 10 * time.Minute

// defaultAvailable is how much memory of the machine idle sandboxes leave available: a 16th, and 1 GiB at most.
func defaultAvailable() int64 { return min(1<<30, hostfile.Memory()/16) }

// settingsFile is the usual settings file, in the home.
const settingsFile = "settings.yaml"

// policyPrefix begins the keys of the policy file among the settings.
const policyPrefix = "policy"

// maxSettings is more than a settings file may have, which its reader says.
const maxSettings = 1 << 20

// ConfigInput is what a configuration is found in.
type ConfigInput struct {
	// Flags are those that were given, by key; see Keys.
	Flags map[string][]string
	// Environ is as os.Environ has it.
	Environ []string
	// DefaultHome is the home if no setting names one.
	DefaultHome string
}

// Configuration is what was found.
type Configuration struct {
	// Config has no version and no log yet.
	Config   Config
	Settings []config.Setting
	// Rules is where the operator's rules are.
	Rules rulefile.File
	// Warnings are of variables that name no setting.
	Warnings []string
}

// settingKeys are all settings but the rules, which have a file of their own.
func settingKeys(defaultHome string) []config.Key {
	one := func(of ...string) func(string) (string, bool) {
		return func(v string) (string, bool) { return "write " + strings.Join(of, " or "), slices.Contains(of, v) }
	}
	tier := one(string(api.TierNamespace), string(api.TierGVisor), string(api.TierMicroVM))
	usual := httpapi.DefaultDeadlines()
	shares := one(string(docker.ShareAuto), string(docker.ShareYes), string(docker.ShareNo))
	return []config.Key{
		{Name: keyHome, Env: "CLOCHE_HOME", Unsaid: true, Path: true, Default: []string{defaultHome}},
		{Name: keySettings, Unsaid: true, Path: true},
		{Name: keyPolicy, Path: true},
		{Name: keyListen, List: true},
		{Name: keyToken, Env: "CLOCHE_TOKEN", Unsaid: true, Path: true},
		{Name: keyHosts, List: true, Check: hostNamed},
		{Name: keyOrigins, List: true, Check: originNamed},
		{Name: keyTLSCert, Path: true},
		{Name: keyTLSKey, Path: true},
		{Name: keyLogFormat, Default: []string{"text"}, Check: one("text", "json")},
		{Name: keyLogLevel, Default: []string{"info"}, Check: one("debug", "info", "warn", "error")},
		{Name: keyDockerHost, Env: "DOCKER_HOST"},
		{Name: keyDockerCerts, Env: "DOCKER_CERT_PATH", Path: true},
		{Name: keyDockerRuntime},
		{Name: keyDockerTier, Default: []string{string(api.TierNamespace)}, Check: tier},
		{Name: keyDockerShares, Default: []string{string(docker.ShareAuto)}, Check: shares},
		{Name: keyPodmanHost, Env: "CONTAINER_HOST"},
		{Name: keyPodmanRuntime},
		{Name: keyPodmanTier, Default: []string{string(api.TierNamespace)}, Check: tier},
		{Name: keyPodmanShares, Default: []string{string(docker.ShareAuto)}, Check: shares},
		{Name: keyBoxListen, Check: hostPort},
		{Name: keyE2BListen, Check: hostPort},
		{Name: keyE2BProfile},
		{Name: keyE2BAllow, List: true},
		{Name: keyE2BDomain, Check: domainNamed},
		{Name: keyE2BKey, Env: "E2B_API_KEY"},
		{Name: keyE2BURL, Env: "E2B_API_URL"},
		{Name: keyE2BSandboxURL, Env: "E2B_SANDBOX_URL"},
		{Name: keyE2BTemplate},
		{Name: keyE2BLifetime, Default: []string{e2b.DefaultLifetime.String()}, Check: lasts},
		{Name: keyE2BNetworkOff, Default: []string{networkConfirmed}, Check: one(networkConfirmed, networkAssumed)},
		{Name: keyE2BHostMounts, Default: []string{"no"}, Check: one("yes", "no")},
		{Name: keyPortsListen, Check: hostPort},
		{Name: keyPortsURL, Check: portsURL},
		{Name: keyPortsCert, Path: true},
		{Name: keyPortsKey, Path: true},
		{Name: keyOCIRuntime, Check: runtimeName},
		{Name: keyNsjailPath, Path: true},
		{Name: keyPoolFloor, Default: []string{"0"}, Check: from(0, rules.MaxPool)},
		{Name: keyPoolCeiling, Default: []string{strconv.Itoa(DefaultPoolCeiling)}, Check: from(0, rules.MaxPool)},
		{Name: keyPoolMemory, Default: []string{strconv.FormatInt(defaultPoolMemory(), 10)}, Check: sized},
		{Name: keyCheckpointKey, Path: true},
		{Name: keyCheckpointAfter, Default: []string{defaultCompressAfter.String()}, Check: lasts},
		{Name: keyAvailable, Default: []string{strconv.FormatInt(defaultAvailable(), 10)}, Check: sized},
		{Name: keyMaxStarting, Default: []string{strconv.Itoa(policy.DefaultStarting())}, Check: from(1, 4096)},
		{Name: keyMaxQueued, Default: []string{strconv.Itoa(policy.DefaultQueued)}, Check: from(1, 1_000_000)},
		{Name: keyDeadlineCall, Default: []string{usual.Call.String()}, Check: lasts},
		{Name: keyDeadlineChange, Default: []string{usual.Change.String()}, Check: lasts},
		{Name: keyDeadlineWork, Default: []string{usual.Work.String()}, Check: lasts},
		{Name: keyDeadlineTransfer, Default: []string{usual.Transfer.String()}, Check: lasts},
		{Name: keyDeadlineAgent, Default: []string{agentconn.DefaultSilence.String()}, Check: lasts},
	}
}

// hostNamed takes names by which the daemon may be called.
func hostNamed(v string) (string, bool) {
	return "write a name such as box.example.org, or *.example.org", httpapi.ValidHost(v)
}

// originNamed takes origins of pages.
func originNamed(v string) (string, bool) {
	return "write an origin as browsers do, such as https://tools.example.org", httpapi.ValidOrigin(v)
}

// domainNamed takes the domain of the names of ports, and nothing.
func domainNamed(v string) (string, bool) {
	name, _, _ := strings.Cut(v, ":")
	return "write a domain such as sandboxes.example.org", v == "" || httpapi.ValidHost(name) && !strings.HasPrefix(name, "*")
}

// hostPort takes addresses, and nothing.
func hostPort(v string) (string, bool) {
	_, ok := boxAt(v)
	return "write an address with its port, such as 127.0.0.1:5410", ok
}

// portsURL takes the URL of ports, and nothing.
func portsURL(v string) (string, bool) {
	_, err := ingress.ParseBase(v)
	return "write the scheme, an asterisk for the name of a port, and the domain: https://*.box.example.org", v == "" || err == nil
}

// boxAt is the API server for LangBot at an address; nil without one.
func boxAt(v string) (*Box, bool) {
	if v == "" {
		return nil, true
	}
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	return &Box{Host: host, Port: int(n)}, err == nil && perr == nil
}

// runtimeName takes what the engine oci can find.
func runtimeName(v string) (string, bool) {
	return "write runc, crun, krun or the absolute path of a runtime", v == "runc" || v == "crun" || v == "krun" || filepath.IsAbs(v)
}

// from takes whole numbers.
func from(least, most int) func(string) (string, bool) {
	return func(v string) (string, bool) {
		n, err := strconv.Atoi(v)
		return fmt.Sprintf("write a whole number from %d to %d", least, most), err == nil && n >= least && n <= most
	}
}

// sized takes sizes.
func sized(v string) (string, bool) {
	_, err := rules.ParseSize(v)
	return "write bytes or a unit, such as 512MiB", err == nil
}

// sizeOf is a setting that was checked to be one, in bytes.
func sizeOf(settings []config.Setting, key string) int64 {
	n, err := rules.ParseSize(textOf(settings, key))
	if err != nil {
		return 0
	}
	return int64(n)
}

// lasts takes durations that a deadline may have.
func lasts(v string) (string, bool) {
	d, err := time.ParseDuration(v)
	return "write a duration from 1s to 24h, such as 90s", err == nil && d >= time.Second && d <= 24*time.Hour
}

// durationOf is a setting that was checked to be one.
func durationOf(settings []config.Setting, key string) time.Duration {
	d, err := time.ParseDuration(textOf(settings, key))
	if err != nil {
		return 0 // the default of what it is for
	}
	return d
}

// numberOf is a setting that was checked to be one.
func numberOf(settings []config.Setting, key string) int {
	n, err := strconv.Atoi(textOf(settings, key))
	if err != nil {
		return 0 // the manager's own default
	}
	return n
}

// Configure finds the settings of a daemon: flags go before the environment, that
// before the settings file, and that before the defaults. It reads files and changes
// nothing.
func Configure(in ConfigInput) (Configuration, error) {
	keys := settingKeys(in.DefaultHome)
	// Where the file is, is known without it.
	first, _, err := config.Resolve(keys, config.Input{Flags: in.Flags, Environ: in.Environ})
	if err != nil {
		return Configuration{}, err
	}
	home := textOf(first, keyHome)
	path := cmp.Or(textOf(first, keySettings), filepath.Join(home, settingsFile))
	data, err := readSettings(path, textOf(first, keySettings) == "")
	if err != nil {
		return Configuration{}, err
	}
	settings, others, err := config.Resolve(keys, config.Input{Flags: in.Flags, Environ: in.Environ, File: data})
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && strings.Contains(e.Message, "line ") {
			return Configuration{}, fmt.Errorf("settings file %s: %w", filepath.Clean(path), err)
		}
		return Configuration{}, err
	}
	out := Configuration{Settings: settings}
	for _, v := range others {
		rest := v.Path[1:]
		switch {
		case v.Path[0] == policyPrefix && rules.KnownKey(rest):
			out.Rules.Over = append(out.Rules.Over, rules.Override{Name: v.Name, Path: rest, Text: v.Text})
		default:
			out.Warnings = append(out.Warnings, v.Name+" names no setting")
		}
	}
	// One that was named must be there, the usual one need not.
	out.Rules.Path, out.Rules.Optional = textOf(settings, keyPolicy), textOf(settings, keyPolicy) == ""
	if out.Rules.Optional {
		out.Rules.Path = filepath.Join(home, "policy.yaml")
	}
	if err := pairs(settings); err != nil {
		return Configuration{}, err
	}
	level := slog.LevelInfo
	if err := level.UnmarshalText([]byte(textOf(settings, keyLogLevel))); err != nil {
		return Configuration{}, api.Invalid(keyLogLevel, "the log's level: %w", err).WithHint("write debug, info, warn or error")
	}
	out.Config = Config{
		Home: home, Listen: valuesOf(settings, keyListen), Rules: textOf(settings, keyPolicy), RulesOver: out.Rules.Over,
		Hosts: valuesOf(settings, keyHosts), Origins: valuesOf(settings, keyOrigins), TLSCert: textOf(settings, keyTLSCert), TLSKey: textOf(settings, keyTLSKey),
		Token: textOf(settings, keyToken), LogJSON: textOf(settings, keyLogFormat) == "json", LogLevel: level,
		Docker: ContainerDaemon{
			Host: textOf(settings, keyDockerHost), CertDir: textOf(settings, keyDockerCerts),
			Runtime: textOf(settings, keyDockerRuntime), RuntimeTier: api.Tier(textOf(settings, keyDockerTier)),
			SharesHostFS: docker.Sharing(textOf(settings, keyDockerShares)),
		},
		Podman: ContainerDaemon{
			Host:    textOf(settings, keyPodmanHost),
			Runtime: textOf(settings, keyPodmanRuntime), RuntimeTier: api.Tier(textOf(settings, keyPodmanTier)),
			SharesHostFS: docker.Sharing(textOf(settings, keyPodmanShares)),
		},
		OCIRuntime:    textOf(settings, keyOCIRuntime),
		CheckpointKey: textOf(settings, keyCheckpointKey), CompressAfter: durationOf(settings, keyCheckpointAfter),
		Available: sizeOf(settings, keyAvailable),
		Nsjail:    textOf(settings, keyNsjailPath),
		Pool: Pool{
			Floor: numberOf(settings, keyPoolFloor), Ceiling: numberOf(settings, keyPoolCeiling), Bytes: sizeOf(settings, keyPoolMemory),
		},
		Warnings: out.Warnings,
		Deadlines: httpapi.Deadlines{
			Call: durationOf(settings, keyDeadlineCall), Change: durationOf(settings, keyDeadlineChange),
			Work: durationOf(settings, keyDeadlineWork), Transfer: durationOf(settings, keyDeadlineTransfer),
		},
		AgentSilence: durationOf(settings, keyDeadlineAgent),
		Admission:    policy.Admission{Starting: numberOf(settings, keyMaxStarting), Queued: numberOf(settings, keyMaxQueued)},
	}
	out.Config.Ingress = Ingress{
		Listen: textOf(settings, keyPortsListen), URL: textOf(settings, keyPortsURL),
		TLSCert: textOf(settings, keyPortsCert), TLSKey: textOf(settings, keyPortsKey),
	}
	out.Config.Box, _ = boxAt(textOf(settings, keyBoxListen)) // it was checked
	out.Config.E2B = e2bOf(settings)
	return out, nil
}

// pairs refuses a certificate without its key, and a key without its certificate.
func pairs(settings []config.Setting) error {
	for _, pair := range [][3]string{
		{keyTLSCert, keyTLSKey, "name both with --tls-cert and --tls-key"}, {keyPortsCert, keyPortsKey, "set both"},
	} {
		cert, key := textOf(settings, pair[0]), textOf(settings, pair[1])
		if (cert == "") == (key == "") {
			continue
		}
		missing := pair[0]
		if key == "" {
			missing = pair[1]
		}
		return api.Invalid(missing, "TLS needs a certificate and its key, and %s is missing", missing).WithHint("%s", pair[2])
	}
	return nil
}

func valuesOf(settings []config.Setting, key string) []string {
	i := slices.IndexFunc(settings, func(s config.Setting) bool { return s.Name == key })
	return settings[i].Values
}

func textOf(settings []config.Setting, key string) string {
	return strings.Join(valuesOf(settings, key), "")
}

func readSettings(path string, optional bool) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && optional {
		return nil, nil
	}
	if err == nil {
		defer f.Close()
		var fi fs.FileInfo
		if fi, err = f.Stat(); err == nil && !fi.Mode().IsRegular() {
			err = errors.New("it is not a regular file")
		}
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(f, maxSettings))
	}
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "the settings file cannot be read: %w", err).WithHint("name another with --settings")
	}
	return data, nil
}

// Shown is one setting as any user may see it.
type Shown struct {
	Key    string
	Value  any
	Source string
}

// usual is the default of a setting: a path in the home.
func (c Configuration) usual(key string) any {
	switch key {
	case keySettings:
		return filepath.Join(c.Config.Home, settingsFile)
	case keyPolicy:
		return c.Rules.Path
	case keyListen:
		return []string{"unix://" + filepath.Join(c.Config.Home, "cloche.sock")}
	}
	return ""
}

// e2bOf reads the settings about E2B's clients and services.
func e2bOf(settings []config.Setting) E2B {
	return E2B{
		Listen: textOf(settings, keyE2BListen), Profile: textOf(settings, keyE2BProfile), Allow: valuesOf(settings, keyE2BAllow),
		Domain: textOf(settings, keyE2BDomain),
		Service: e2b.Options{
			APIKey: textOf(settings, keyE2BKey), APIURL: textOf(settings, keyE2BURL), SandboxURL: textOf(settings, keyE2BSandboxURL),
			Template: textOf(settings, keyE2BTemplate), Lifetime: durationOf(settings, keyE2BLifetime),
			AssumeNoNetwork: textOf(settings, keyE2BNetworkOff) == networkAssumed,
			HostMounts:      textOf(settings, keyE2BHostMounts) == "yes",
		},
	}
}

// Show lists every setting, and the keys of the policy file that are set, with where
// they come from. A token or key is never shown.
func (c Configuration) Show() ([]Shown, error) {
	var out []Shown
	for _, s := range c.Settings {
		one := Shown{Key: s.Name, Value: s.Text(), Source: string(s.Source)}
		switch {
		case s.Name == keyToken, s.Name == keyE2BKey:
			one.Value = "unset"
			if s.Text() != "" {
				one.Value = "set"
			}
		case s.List && len(s.Values) > 0:
			one.Value = append([]string{}, s.Values...)
		case s.Text() == "":
			one.Value = c.usual(s.Name)
		}
		out = append(out, one)
	}
	data, err := c.Rules.Text()
	if err != nil {
		return nil, err
	}
	set, err := rules.KeysSet(data, c.Rules.Over)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", filepath.Clean(c.Rules.Path), err)
	}
	for _, kv := range set {
		source := config.FromFile
		if kv.Over != "" {
			source = config.FromEnvironment
		}
		out = append(out, Shown{Key: policyPrefix + "." + kv.Key, Value: kv.Value, Source: string(source)})
	}
	return out, nil
}
