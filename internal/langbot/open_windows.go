package langbot

// noLink is nothing: an os.Root stays inside whatever a link says, and a caller that opens a file
// checks afterwards that it is a plain one under the name that was asked for.
const noLink = 0
