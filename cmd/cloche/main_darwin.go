package main

// playRole has no role to play: sandboxes run on another machine, be it a virtual one.
func playRole() {}
