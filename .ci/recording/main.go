// Command recording makes the picture at the top of README.md. It runs the commands of
// docs/pictures/recording.txt in a terminal with a daemon of its own, and writes what the
// terminal got as recording.cast, in the format of asciinema, and as recording.svg. The
// output and its times are real; the typing is simulated. With -render it writes only the
// SVG, from the cast.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Names of the files below the directory of -dir.
const (
	commandsFile = "recording.txt"
	castFile     = "recording.cast"
	svgFile      = "recording.svg"
)

func main() {
	dir := flag.String("dir", "docs/pictures", "the directory of recording.txt, recording.cast and recording.svg")
	binary := flag.String("cloche", "bin/cloche", "the program to record")
	renderOnly := flag.Bool("render", false, "only write the SVG, from the cast")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *binary, *renderOnly); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		stop()
		os.Exit(1)
	}
}

// run records, unless only the SVG is wanted, and renders. It writes only after all worked.
func run(ctx context.Context, dir, binary string, renderOnly bool) error {
	var text []byte
	if renderOnly {
		var err error
		if text, err = os.ReadFile(filepath.Join(dir, castFile)); err != nil {
			return err
		}
	} else {
		commands, err := readCommands(filepath.Join(dir, commandsFile))
		if err != nil {
			return err
		}
		c, err := record(ctx, binary, commands)
		if err != nil {
			return err
		}
		text = c.encode()
	}
	svg, err := render(text)
	if err != nil {
		return err
	}
	if !renderOnly {
		if err := os.WriteFile(filepath.Join(dir, castFile), text, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, svgFile), svg, 0o644)
}
