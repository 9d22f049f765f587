// Package egress decides what a sandbox may reach: the names, ports and requests that a create
// asks for, later changes of them, and what the operator's rules add or deny. A Grant is the
// result, which the network enforces. The decisions are pure: they take the caller, the sandbox
// and the rules, and read nothing else.
package egress
