// Package tools carries out the file tools of models: read, write, edit, glob and grep, none of
// which leaves the root directory that a request names.
package tools
