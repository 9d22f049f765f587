package agent

import "github.com/cloche-dev/cloche/internal/agent/wire"

// ProtocolVersion is the newest protocol that this build speaks; an older agent
// answers with an older one.
const ProtocolVersion = wire.Version

// InputKept is how many of the last bytes of its input an agent remembers of each
// process, to tell a write that is repeated from another's.
const InputKept = wire.InputKept
