package undo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// undoTimeout bounds one step of an undo: a hung step must not keep the others
// from running.
const undoTimeout = 15 * time.Second

// step is one thing that was done, with how to undo it.
type step struct {
	name string
	undo func(context.Context) error
}

// Stack is what a creation has done so far. It is undone in reverse order,
// on a context that the caller's cancellation does not reach.
type Stack []step

// Push adds a step that has been done.
func (u *Stack) Push(name string, undo func(context.Context) error) {
	*u = append(*u, step{name, undo})
}

// Run undoes everything and returns what failed, each named by its step. What
// failed stays on the stack, so that run may be called again.
func (u *Stack) Run(ctx context.Context) error {
	var left Stack
	var errs []error
	for _, s := range slices.Backward(*u) {
		stepCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		if err := s.undo(stepCtx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.name, err))
			left = append(left, s)
		}
		cancel()
	}
	slices.Reverse(left)
	*u = left
	return errors.Join(errs...)
}
