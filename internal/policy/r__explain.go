package policy

// What allows something that no key of the file allows.
const (
	byBuiltin = "builtin"
)
