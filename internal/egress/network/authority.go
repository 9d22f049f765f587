package network

// AuthorityFile is the file of the network's directory that has the key by which hosts are
// signed for. It is 0600, and outside of everything that the sandbox sees. A fork gets a copy.
const AuthorityFile = "authority.pem"
