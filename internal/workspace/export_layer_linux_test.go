package workspace

// SetTrap makes trap be called at each step of a commit.
func SetTrap(l *Layer, trap func(step string) error) { l.trap = trap }
