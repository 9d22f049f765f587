// Package localdir packs directories of this machine into tar and zip archives, and
// unpacks archives of sandboxes into them. What comes from a sandbox is not trusted:
// unpacking is bounded and never writes outside of the directory.
package localdir
