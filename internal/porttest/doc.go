// Package porttest gives tests ports to listen on.
package porttest
