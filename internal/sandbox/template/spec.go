package template

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Complete makes a request for a sandbox that starts from a stored memory one for everything that the sandbox is going to
// have: whole is what the captured sandbox had. The processes that continue know the rest of it, so that the request cannot
// have another.
func Complete(asked, whole api.SandboxSpec) (api.SandboxSpec, error) {
	out := whole
	out.Name, out.Snapshot, out.IdempotencyKey, out.Naming, out.Labels = asked.Name, asked.Snapshot, asked.IdempotencyKey, asked.Naming, asked.Labels
	out.Persistent, out.Transient, out.OnExpiry, out.AutoResume = asked.Persistent, asked.Transient, asked.OnExpiry, asked.AutoResume
	out.Limits.LifetimeMS, out.Limits.IdleMS = asked.Limits.LifetimeMS, asked.Limits.IdleMS
	out.Limits.TimeoutMS = cmp.Or(asked.Limits.TimeoutMS, whole.Limits.TimeoutMS)
	out.Limits.MaxOutputBytes = cmp.Or(asked.Limits.MaxOutputBytes, whole.Limits.MaxOutputBytes)
	out.Env = maps.Clone(whole.Env)
	if len(asked.Env) > 0 && out.Env == nil {
		out.Env = map[string]string{}
	}
	maps.Copy(out.Env, asked.Env)
	if asked.Profile == whole.Profile {
		asked.Profile = ""
	}
	if asked.Image == whole.Image {
		asked.Image = ""
	}
	if asked.Network == whole.Network {
		asked.Network = ""
	}
	if reflect.DeepEqual(asked.Egress, whole.Egress) {
		asked.Egress = nil
	}
	asked.Name, asked.Snapshot, asked.IdempotencyKey, asked.Naming, asked.Labels, asked.Env = "", "", "", api.Naming{}, nil, nil
	asked.Persistent, asked.OnExpiry, asked.Transient, asked.AutoResume = nil, "", false, false
	asked.Limits.LifetimeMS, asked.Limits.IdleMS, asked.Limits.TimeoutMS, asked.Limits.MaxOutputBytes = 0, 0, 0, 0
	if field, err := firstField(asked); err != nil || field != "" {
		return out, api.Invalid(field, "a sandbox that continues from the memory of a snapshot has the %s of the sandbox that the snapshot was made of", field).
			WithHint("leave it out; it can have a name, labels, env, a lease and output limits of its own").WithCause(err)
	}
	return out, nil
}

// firstField returns the name of the first field of a request that has a value, or "".
func firstField(spec api.SandboxSpec) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	var top, limits map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil || len(top) == 0 {
		return "", err
	}
	field := slices.Min(slices.Collect(maps.Keys(top)))
	if field != "limits" {
		return field, nil
	}
	if err := json.Unmarshal(top[field], &limits); err != nil || len(limits) == 0 {
		return field, err
	}
	return field + "." + slices.Min(slices.Collect(maps.Keys(limits))), nil
}
