// Package undo has the stack of steps that a creation has done, and undoes them.
package undo
