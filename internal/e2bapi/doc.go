// Package e2bapi is the API server for clients of E2B: their SDKs work unchanged with
//
//	E2B_API_URL=http://127.0.0.1:PORT
//	E2B_SANDBOX_URL=http://127.0.0.1:PORT
//	E2B_API_KEY=KEY
//
// The control plane (create, connect, list, kill, …) is in this package. The data plane, which in E2B is a
// server inside each sandbox, is package envd. Requests for a port of a sandbox are forwarded to it.
//
// The server decides nothing: it names the caller, translates the request, calls core and encodes the
// answer as E2B's clients read it. What E2B needs to know about a sandbox and core does not, such as the
// access token, is a record in the server's own directory. E2B's name of a sandbox is core's ID without
// its prefix, because E2B's clients take a dash for the end of it.
package e2bapi

// envdPort is the port of E2B's own server in a sandbox, and envdVersion the version of it whose features
// the data plane has: E2B's clients choose what they send by it.
const (
	envdPort    = 49983
	envdVersion = "0.6.13"
)
