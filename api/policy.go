package api

// PolicyProblem is one thing that is wrong with a policy file, or that was
// probably meant otherwise.
type PolicyProblem struct {
	// Line and Column count from 1; 0 is unknown.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Warning is true for what a daemon accepts.
	Warning bool `json:"warning,omitempty"`
	// Key is the path of the key, such as "mounts[0].root".
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// PolicyQuestion asks what policy would say to a request. Nothing is done.
type PolicyQuestion struct {
	// Verb is what would be asked, as audit and events name it; empty is "create".
	Verb string `json:"verb,omitempty"`
	// Spec is the sandbox, for "create" and "run".
	Spec SandboxSpec `json:"spec"`
	// Sandbox is an id or name, for every verb on a sandbox that exists.
	Sandbox string `json:"sandbox,omitempty"`
	// Exec is the program, for "run", "exec" and "start_process".
	Exec *ExecRequest `json:"exec,omitempty"`
	// Endpoint is what would be put into the sandbox, for "add_endpoint".
	Endpoint *Endpoint `json:"endpoint,omitempty"`
	// Tenant and Key say as whom, for the operator to ask: a tenant, or the id of an
	// API key with its scopes. Both empty is the caller itself.
	Tenant string `json:"tenant,omitempty"`
	Key    string `json:"key,omitempty"`
}

// PolicyAnswer is what policy would say, and why.
type PolicyAnswer struct {
	Allowed bool   `json:"allowed"`
	Verb    string `json:"verb"`
	// Tenant is whose request was judged, Operator that it is the operator's.
	Tenant   string `json:"tenant"`
	Operator bool   `json:"operator,omitempty"`
	// Steps are the checks in their order, up to the one that refuses.
	Steps []PolicyStep `json:"steps"`
	// Grants are the rules by which parts of it are allowed that are not so to
	// everyone.
	Grants []PolicyGrant `json:"grants,omitempty"`
	// Refusal is the error that the request would get.
	Refusal *Error `json:"refusal,omitempty"`
	// Spec is what would be granted, with every default filled in.
	Spec *SandboxSpec `json:"spec,omitempty"`
	// Adjusted are the values that a lock or a clamp would change.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Unenforced are default limits that the engine could not enforce.
	Unenforced []Unenforced `json:"unenforced,omitempty"`
	// Assumed says what was assumed without a check, if the question was
	// answered without a daemon.
	Assumed []string `json:"assumed,omitempty"`
}

// PolicyStep is one check.
type PolicyStep struct {
	// Name is the check's, and the rule of a refusal that has no narrower one.
	Name    string `json:"name"`
	Refused bool   `json:"refused,omitempty"`
}

// PolicyGrant says by which rule a part of a request is allowed.
type PolicyGrant struct {
	// Field is the part of the request, such as "image" or "mounts[0].source".
	Field string `json:"field"`
	// Rule is the key of the policy file, or what stands for one: "operator",
	// "builtin".
	Rule string `json:"rule"`
}
