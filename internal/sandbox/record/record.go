// Package record has the record of a sandbox, which outlives the daemon: its format, and how it is written and read.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Version is the format of a Record. Version 1 had neither leases nor
// sandboxes that are not persistent; another version is not adopted.
const Version = 2

// Record is what survives the daemon: one file in each sandbox's directory,
// readable by its owner alone because it holds the agent's token.
type Record struct {
	Version int
	Info    api.Sandbox
	// EngineState is what the engine needs to find the instance again.
	EngineState []byte
	AgentToken  []byte
	Image       Image
	// KeyDigest is the digest of the request that the idempotency key belongs to.
	KeyDigest string `json:",omitempty"`
	// Removing means that a removal has begun. A daemon that reads this record finishes it.
	Removing bool `json:",omitempty"`
	// Removal is the reason for that removal and the caller that requested it.
	Removal *Removal `json:",omitempty"`
	// Unsettled: a pause or a resume was under way, and what it came to is not
	// known. The reader of this record makes the sandbox run.
	Unsettled bool `json:",omitempty"`
	// Began is when it began to run; a record without it is from a build for which
	// that was its creation.
	Began time.Time `json:",omitzero"`
	// LastUse is when the idle time began; it may be a little older than the truth.
	LastUse time.Time `json:",omitzero"`
	// Endpoints are as they were granted.
	Endpoints []policy.EndpointGrant `json:",omitempty"`
	// Ports are the open ports.
	Ports []policy.PortGrant `json:",omitempty"`
	// Egress is what may leave it; nil without a network.
	Egress *policy.EgressGrant `json:",omitempty"`
	// Secrets are those that its processes have, without their values; Trusts says that
	// they have files with trusted certificates.
	Secrets []Secret `json:",omitempty"`
	Trusts  bool     `json:",omitempty"`
	// Copies are the directories of this machine that it has copies of, and Dirs those that are mounted.
	Copies, Dirs []workspace.Attached `json:",omitempty"`
	// Spec is the request that created the sandbox, and Creator is the caller.
	Spec    *api.SandboxSpec `json:",omitempty"`
	Creator Creator          `json:",omitzero"`
	// RootSince is a time before the first change of the root. EndBegan is when the end of the sandbox began.
	RootSince time.Time `json:",omitzero"`
	EndBegan  time.Time `json:",omitzero"`
	// Memory is the note of the engine about the saved memory of a suspended sandbox.
	Memory []byte `json:",omitempty"`
	// IdleSpent is where the idle time of a paused sandbox is.
	IdleSpent time.Duration `json:",omitempty"`
}

// Write stores r durably. A crash or a power cut leaves the old record or the new one; of
// the first it may leave a part, in a directory that [directory.Unfinished] knows.
func (r *Record) Write(dir string, first bool) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	put := hostfile.ReplaceIn
	if first {
		put = hostfile.CreateIn
	}
	if err := put(dir, directory.Record, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// Identity is what stays known of a sandbox when its record cannot be read.
type Identity struct {
	Version int
	// Info has what does not change after the sandbox was created.
	Info api.Sandbox
	// KeyDigest is as in Record.
	KeyDigest string `json:",omitempty"`
}

// Describe writes the identity of a sandbox that is about to be created into its empty
// directory. The description is on the disk when wait returns nil, which must be called
// before the directory is given up and before there is a record.
func Describe(dir string, i api.Sandbox, digest string) (wait func() error, err error) {
	data, err := json.Marshal(Identity{Version: Version, KeyDigest: digest, Info: api.Sandbox{
		ID: i.ID, Name: i.Name, Tenant: i.Tenant, Profile: i.Profile, Image: i.Image, Engine: i.Engine, Tier: i.Tier, Labels: i.Labels,
		Workspace: i.Workspace, IdempotencyKey: i.IdempotencyKey, Persistent: i.Persistent, CreatedAt: i.CreatedAt,
	}})
	if err != nil {
		return nil, fmt.Errorf("encode description: %w", err)
	}
	f, err := hostfile.OpenFile(filepath.Join(dir, directory.UnfinishedIdentity), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		if _, err = f.Write(data); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write description: %w", err)
	}
	// The disk is waited for while the rest of the sandbox is made.
	synced := make(chan error, 1)
	go func() {
		synced <- errors.Join(f.Sync(), f.Close(), hostfile.SyncDirAt(dir), hostfile.SyncDirAt(filepath.Dir(dir)))
	}()
	return sync.OnceValue(func() error { return <-synced }), nil
}

// ReadIdentity reads the description of a sandbox, as far as there is one.
func ReadIdentity(dir string) (i Identity, ok bool) {
	data, err := os.ReadFile(filepath.Join(dir, directory.Identity))
	if err != nil || json.Unmarshal(data, &i) != nil || i.Info.ID != filepath.Base(dir) {
		return Identity{}, false
	}
	return i, true
}

// Read reads the record in a sandbox's directory. The error is fs.ErrNotExist if there is no
// record.
func Read(dir string) (*Record, error) { return ReadAs(dir, filepath.Base(dir)) }

// ReadAs is Read of the record of the sandbox with an ID, in whichever directory.
func ReadAs(dir, id string) (*Record, error) {
	data, err := os.ReadFile(filepath.Join(dir, directory.Record))
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, errors.New("the record is empty")
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch r.Version {
	case Version:
	case 1:
		r.Info.Persistent = true
	default:
		return nil, fmt.Errorf("record has version %d, this build reads 1 to %d", r.Version, Version)
	}
	if r.Info.ID != id {
		return nil, fmt.Errorf("record is of sandbox %q", r.Info.ID)
	}
	return &r, nil
}

// SpecNow is what a sandbox was created with, and what has changed since.
func SpecNow(spec api.SandboxSpec, info api.Sandbox) *api.SandboxSpec {
	spec.Name, spec.Engine, spec.Snapshot = info.Name, info.Engine, ""
	spec.Cwd, spec.User, spec.Endpoints, spec.Skills = info.Cwd, info.User, info.Endpoints, info.Skills
	if info.Image != api.DefaultImage && info.ImageDigest != "" {
		spec.Image, spec.Pull = info.ImageDigest, api.PullNever
	}
	return &spec
}

// Image is what an image says of the processes that run in it.
type Image struct {
	Env map[string]string
	// Path is the file that the root lies on.
	Path string `json:",omitempty"`
	// Agent is the file of the image of the agent.
	Agent string `json:",omitempty"`
	// MissingHint belongs to the error about a program that is not there.
	MissingHint string
}

// Secret is a secret that a sandbox has, as its record keeps it: never with the
// value, which is read when it is used.
type Secret struct {
	Name, Env string
	Mode      api.SecretMode
	// Placeholder stands for the value in the sandbox, and Hosts may get it.
	Placeholder string      `json:",omitempty"`
	Hosts       []rule.Host `json:",omitempty"`
	Headers     []string    `json:",omitempty"`
	Query       bool        `json:",omitempty"`
}

// Creator is what is known of the caller that created a sandbox. A use resumes the sandbox with the rights of that caller.
type Creator struct {
	Operator bool `json:",omitempty"`
	// UID is its uid plus one; 0 is not known.
	UID int `json:",omitempty"`
}

// CreatorOf returns what is recorded of a caller.
func CreatorOf(c policy.Caller) Creator { return Creator{Operator: c.Operator, UID: c.UID + 1} }

// Caller returns the caller, for the tenant that the sandbox belongs to.
func (c Creator) Caller(tenant string) policy.Caller {
	return policy.Caller{Tenant: tenant, Operator: c.Operator, UID: c.UID - 1, Via: policy.ViaUse}
}

// Removal is why a removal was begun, as the record keeps it for the next daemon.
type Removal struct {
	Cause api.TerminalReason
	Text  string `json:",omitempty"`
	// By is the tenant and origin of the caller that requested it, or empty.
	By string `json:",omitempty"`
}

// Hostname is the host name of a sandbox: its name, as far as a host name can have it.
func Hostname(name string) string {
	return strings.Trim(strings.NewReplacer("_", "-", ".", "-").Replace(name), "-")
}
