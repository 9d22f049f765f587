package policy

// schemeReplay is the scheme of recordings. In a rule it stands for all of them.
const schemeReplay = "replay"
