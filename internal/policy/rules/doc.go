// Package rules holds the operator's policy file: its data types, how it is parsed, and the
// checks of everything that needs no request. A file has one document; ParseRules returns its
// Rules or its first error with line and column, and ReadDocument all errors. Overrides of
// single values are applied before the checks.
//
// To add a rule: add its field to Rules or to the type of its part, its check to the list in
// parse.go, and the decision that uses it to package policy.
package rules
