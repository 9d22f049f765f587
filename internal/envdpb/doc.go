// Package envdpb has the messages and services that E2B's clients speak to the program envd of a
// sandbox: process.Process and filesystem.Filesystem. All but this file is generated from the
// .proto files beside it.
package envdpb

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate
