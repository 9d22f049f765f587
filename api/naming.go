package api

// Naming says which sandbox is meant by who asks for it, instead of by a name. A
// server that speaks for many users sets it from what it knows of them itself;
// what an agent or a model wrote has no part in it.
type Naming struct {
	// NameTemplate is the sandbox's name with variables, such as
	// "{launcher_type}_{launcher_id}"; empty is the operator's, or
	// DefaultNameTemplate. Only in a request that names no sandbox otherwise. An
	// operator's forced template goes before it.
	NameTemplate string `json:"name_template,omitempty"`
	// Identity has the values of the variables.
	Identity *Identity `json:"identity,omitempty"`
}

// DefaultNameTemplate is the template of requests that have an identity and no
// template, where the operator has none either.
const DefaultNameTemplate = "{launcher_type}_{launcher_id}"

// RefByNaming stands where a sandbox is named, and leaves it to Naming.
const RefByNaming = "-"

// Identity is for whom a request is made. Each value is text of any script; the
// same values always give the same name, and other values another. Leave unknown values
// empty.
type Identity struct {
	// LauncherType is the kind of conversation, such as "person" or "group"; where it
	// is not known the variable is "query".
	LauncherType string `json:"launcher_type,omitempty"`
	// LauncherID is the conversation; else the variable is QueryID.
	LauncherID string `json:"launcher_id,omitempty"`
	// SenderID is who wrote; else the variable is LauncherID, then QueryID.
	SenderID string `json:"sender_id,omitempty"`
	// QueryID is the single request.
	QueryID string `json:"query_id,omitempty"`
	// Variables are further ones. They never stand for one of the four above, nor for
	// "global", which is always "global".
	Variables map[string]string `json:"variables,omitempty"`
}

// Info is what a caller may know of the daemon and of itself before it asks for
// anything.
type Info struct {
	Version string `json:"version"`
	// API is the version of the paths, such as "v1".
	API string `json:"api"`
	// Tenant is the caller's, and Operator whether it is the operator.
	Tenant   string `json:"tenant"`
	Operator bool   `json:"operator"`
	// ScopeForced: the operator's template names every sandbox, and a request must
	// show for whom it is. ScopeEditable: a request may bring a template, or a name,
	// of its own.
	ScopeForced   bool `json:"scope_forced"`
	ScopeEditable bool `json:"scope_editable"`
	// NameTemplate is the one of requests that bring none.
	NameTemplate string `json:"name_template"`
	// Profiles are the ones that the caller may ask for.
	Profiles []string `json:"profiles"`
	// DefaultProfile is the one of requests that name none.
	DefaultProfile string     `json:"default_profile"`
	Limits         InfoLimits `json:"limits"`
}

// InfoLimits are bounds of requests and of the caller's tenant.
type InfoLimits struct {
	// NameBytes is the longest name.
	NameBytes int `json:"name_bytes"`
	// ArgvBytes and StdinBytes bound one exec, and OutputBytes what is kept of each of
	// its streams.
	ArgvBytes   int64 `json:"argv_bytes"`
	StdinBytes  int64 `json:"stdin_bytes"`
	OutputBytes int64 `json:"output_bytes"`
	// Sandboxes is how many the tenant may have live; 0 is unlimited.
	Sandboxes int `json:"sandboxes"`
	// RequestsPerSecond and Burst are how often the tenant may ask; 0 is unlimited.
	RequestsPerSecond float64 `json:"requests_per_second"`
	Burst             int     `json:"burst"`
}

// ResolvedName is the sandbox that a Naming means.
type ResolvedName struct {
	Name string `json:"name"`
	// Sandbox is the id of the caller's live or kept sandbox of that name; empty if
	// it does not exist.
	Sandbox string `json:"sandbox,omitempty"`
}
