// Package policy has the commands that check and explain a policy file.
package policy
