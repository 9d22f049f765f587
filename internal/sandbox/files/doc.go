// Package files carries out the file operations of sandboxes, which their agents do: files,
// directories, archives, and the file tools of models.
package files
