package api

// Naming selects a sandbox by the identity of the request instead of by name. A server that acts
// for many users sets it from its own data. It must not contain values that an agent or a model
// chose.
type Naming struct {
	// NameTemplate is the sandbox name with variables, such as "{launcher_type}_{launcher_id}".
	// Empty is the operator's template, or DefaultNameTemplate. Use it only in a request that
	// does not name a sandbox in another way. A template that the operator forces takes
	// precedence.
	NameTemplate string `json:"name_template,omitempty"`
	// Identity holds the values of the variables.
	Identity *Identity `json:"identity,omitempty"`
}

// DefaultNameTemplate is the template of requests with an identity and no template, if the operator
// does not set one.
const DefaultNameTemplate = "{launcher_type}_{launcher_id}"

// RefByNaming is used in place of a sandbox name or ID to select the sandbox by Naming.
const RefByNaming = "-"

// Identity says for whom a request is made. Each value is text in any script. The same values
// always give the same name, and different values a different name. Leave unknown values empty.
type Identity struct {
	// LauncherType is the kind of conversation, such as "person" or "group". If it is empty, the
	// variable is "query".
	LauncherType string `json:"launcher_type,omitempty"`
	// LauncherID is the conversation. If it is empty, the variable is QueryID.
	LauncherID string `json:"launcher_id,omitempty"`
	// SenderID is the author of the message. If it is empty, the variable is LauncherID, then
	// QueryID.
	SenderID string `json:"sender_id,omitempty"`
	// QueryID is the individual request.
	QueryID string `json:"query_id,omitempty"`
	// Variables are further variables. They never replace one of the four above, nor "global",
	// which is always "global".
	Variables map[string]string `json:"variables,omitempty"`
}

// Info is what a caller can learn about the daemon and about itself before any other request.
type Info struct {
	Version string `json:"version"`
	// API is the version of the API paths, such as "v1".
	API string `json:"api"`
	// Tenant is the caller's tenant. Operator says whether the caller is the operator.
	Tenant   string `json:"tenant"`
	Operator bool   `json:"operator"`
	// ScopeForced means that the operator's template names every sandbox, and a request must have
	// an identity. ScopeEditable means that a request can set its own template or name.
	ScopeForced   bool `json:"scope_forced"`
	ScopeEditable bool `json:"scope_editable"`
	// NameTemplate is the template of requests without one.
	NameTemplate string `json:"name_template"`
	// Profiles are the profiles that the caller can use.
	Profiles []string `json:"profiles"`
	// DefaultProfile is the profile of requests that do not name one.
	DefaultProfile string     `json:"default_profile"`
	Limits         InfoLimits `json:"limits"`
	// E2BURL is the address at which the daemon serves clients of E2B. It is empty if it does not.
	E2BURL string `json:"e2b_url,omitempty"`
	// E2BNeedsKey says that every client of E2B needs an API key or the daemon's token at E2BURL. Without
	// it the daemon's own user needs none.
	E2BNeedsKey bool `json:"e2b_needs_key,omitempty"`
}

// InfoLimits are limits of requests and of the caller's tenant.
type InfoLimits struct {
	// NameBytes is the maximum length of a name.
	NameBytes int `json:"name_bytes"`
	// ArgvBytes and StdinBytes limit one exec. OutputBytes limits what is kept of each output
	// stream.
	ArgvBytes   int64 `json:"argv_bytes"`
	StdinBytes  int64 `json:"stdin_bytes"`
	OutputBytes int64 `json:"output_bytes"`
	// Sandboxes is the maximum number of live sandboxes of the tenant; 0 is unlimited.
	Sandboxes int `json:"sandboxes"`
	// RequestsPerSecond and Burst are the tenant's request rate; 0 is unlimited.
	RequestsPerSecond float64 `json:"requests_per_second"`
	Burst             int     `json:"burst"`
}

// ResolvedName is the sandbox that a Naming selects.
type ResolvedName struct {
	Name string `json:"name"`
	// Sandbox is the ID of the caller's live or kept sandbox of that name. It is empty if no
	// such sandbox exists.
	Sandbox string `json:"sandbox,omitempty"`
}
