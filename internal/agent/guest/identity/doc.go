// Package identity says who the agent and its programs are: the agent's own id and capabilities,
// and the users and groups of the image.
package identity
