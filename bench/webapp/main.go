// Command webapp is the program that the group field starts: it holds 64 MiB, serves HTTP on its own loopback, asks
// itself, and prints the status. It ends when its standard input does, or, with an argument, when it is killed.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

const (
	held = 64 << 20
	page = 4096
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "webapp:", err)
		os.Exit(1)
	}
}

func run() error {
	memory := make([]byte, held)
	for i := 0; i < len(memory); i += page {
		memory[i] = byte(i / page)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // it answers itself alone
			fmt.Fprintln(w, len(memory))
		}))
	}()
	r, err := http.Get("http://" + ln.Addr().String()) //nolint:noctx // the bench kills what hangs
	if err != nil {
		return err
	}
	r.Body.Close()
	fmt.Println(r.StatusCode)
	if len(os.Args) == 1 {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			failed <- nil
		}()
	}
	return <-failed
}
