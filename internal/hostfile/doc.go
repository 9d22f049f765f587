// Package hostfile has the calls about files that systems have each in their own way:
// locks, new names, files that are open while they get another name, whose a
// directory is and who else gets at it. It is about files of Cloche's own; those of
// sandboxes have rules of their own elsewhere.
package hostfile
