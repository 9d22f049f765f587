package process

import (
	"io"
	"os"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// EnvOf reads files of assignments, and then assignments.
func EnvOf(files, assignments []string, lookup func(string) (string, bool)) (map[string]string, error) {
	var all []string
	for _, name := range files {
		lines, err := readEnvFile(name, lookup)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return command.ParseEnv(append(all, assignments...), lookup)
}

// readEnvFile reads a file as Docker does: a line is NAME=VALUE with no quotes, or NAME
// alone, which is passed over where it is not set here; # begins a comment.
func readEnvFile(name string, lookup func(string) (string, bool)) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, localdir.Error("read", name, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, localdir.Error("read", name, err)
	}
	if len(data) > maxEnvFile {
		return nil, api.Errorf(api.CodeTooLarge, "--env-file: %s is more than %s", terminal.Printable(name), command.FormatSize(maxEnvFile)).
			WithHint("bring a large value as a file, with --file")
	}
	var out []string
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		number++
		line = strings.TrimRight(strings.TrimLeft(line, " \t"), "\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		k, _, given := strings.Cut(line, "=")
		if k == "" || strings.ContainsAny(k, " \t") {
			return nil, api.Invalid("env", "--env-file: line %d of %s does not begin with a name", number, terminal.Printable(name)).WithHint("write NAME=VALUE")
		}
		if _, here := lookup(k); given || here {
			out = append(out, line)
		}
	}
	return out, nil
}

// maxEnvFile bounds a file of --env-file.
const maxEnvFile = 1 << 20
