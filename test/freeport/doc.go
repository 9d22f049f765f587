// Package freeport gives tests ports to listen on.
package freeport
