package api

// PolicyProblem is an error in a policy file, or a probable mistake.
type PolicyProblem struct {
	// Line and Column count from 1; 0 is unknown.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Warning is true for a problem that the daemon accepts.
	Warning bool `json:"warning,omitempty"`
	// Key is the path of the key, such as "mounts[0].root".
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// PolicyQuestion asks how policy would judge a request. Nothing is executed.
type PolicyQuestion struct {
	// Verb is the operation, as audit records and events name it. Empty is "create".
	Verb string `json:"verb,omitempty"`
	// Spec is the sandbox, for "create" and "run".
	Spec SandboxSpec `json:"spec"`
	// Sandbox is an ID or a name, for every operation on an existing sandbox.
	Sandbox string `json:"sandbox,omitempty"`
	// Exec is the program, for "run", "exec" and "start_process".
	Exec *ExecRequest `json:"exec,omitempty"`
	// Endpoint is the endpoint to add, for "add_endpoint".
	Endpoint *Endpoint `json:"endpoint,omitempty"`
	// Tenant and Key let the operator ask on behalf of a tenant, or of an API key with its
	// scopes, by the key's ID. If both are empty, the question is for the caller itself.
	Tenant string `json:"tenant,omitempty"`
	Key    string `json:"key,omitempty"`
}

// PolicyAnswer is the decision of policy, with its reasons.
type PolicyAnswer struct {
	Allowed bool   `json:"allowed"`
	Verb    string `json:"verb"`
	// Tenant is the tenant whose request was judged. Operator says that it is the operator's
	// request.
	Tenant   string `json:"tenant"`
	Operator bool   `json:"operator,omitempty"`
	// Steps are the checks in order, up to the one that refuses.
	Steps []PolicyStep `json:"steps"`
	// Grants are the rules that allow parts of the request that are not allowed to everyone.
	Grants []PolicyGrant `json:"grants,omitempty"`
	// Refusal is the error that the request would get.
	Refusal *Error `json:"refusal,omitempty"`
	// Spec is the sandbox that would be granted, with defaults filled in.
	Spec *SandboxSpec `json:"spec,omitempty"`
	// Adjusted lists values that a lock or a clamp would change.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Unenforced lists default limits that the engine could not enforce.
	Unenforced []Unenforced `json:"unenforced,omitempty"`
	// Assumed lists what was assumed without a check, when the question is answered without a
	// daemon.
	Assumed []string `json:"assumed,omitempty"`
}

// PolicyStep is one check.
type PolicyStep struct {
	// Name is the name of the check. It is also the rule of a refusal without a more specific
	// rule.
	Name    string `json:"name"`
	Refused bool   `json:"refused,omitempty"`
}

// PolicyGrant names the rule that allows a part of a request.
type PolicyGrant struct {
	// Field is the part of the request, such as "image" or "mounts[0].source".
	Field string `json:"field"`
	// Rule is a key of the policy file, or "operator" or "builtin".
	Rule string `json:"rule"`
}
