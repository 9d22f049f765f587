package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"strconv"
)

// AgentPath is where the agent's image holds the program.
const AgentPath = "/cloche-agent"

// maxProgram bounds an agent program.
const maxProgram = 512 << 20

// AgentImage returns the path of an EROFS image that holds the program at
// AgentPath. The program must be part of this executable: as long as that is the
// same file, unchanged, so is the program, and no digest has to be made to know
// it. The image is made once for each program.
func (s *Store) AgentImage(ctx context.Context, program []byte) (string, error) {
	if len(program) == 0 || len(program) > maxProgram {
		return "", fmt.Errorf("make agent image: a program of %d bytes cannot be packed", len(program))
	}
	own, err := executable()
	if err != nil {
		return "", fmt.Errorf("make agent image: %w", err)
	}
	f, exe, err := openProgram(own)
	if err != nil {
		return "", fmt.Errorf("make agent image: %w", err)
	}
	defer f.Close()
	// The checksum tells apart the programs of one executable, nothing more.
	sum := crc32.Checksum(program, crc32.MakeTable(crc32.Castagnoli))
	return s.agentImage(ctx, fmt.Sprint("part", len(program), sum, exe), bytes.NewReader(program), int64(len(program)))
}

// AgentImageFile is AgentImage for a program that is a file, such as this
// executable where it takes the agent's role itself.
func (s *Store) AgentImageFile(ctx context.Context, path string) (string, error) {
	f, program, err := openProgram(path)
	if err != nil {
		return "", fmt.Errorf("make agent image: %w", err)
	}
	defer f.Close()
	return s.agentImage(ctx, fmt.Sprint("file", program), f, program.Size)
}

// agentForm is in the identity of what is packed: images of another form are made
// again.
const agentForm = "parted "

func (s *Store) agentImage(ctx context.Context, identity string, program io.ReaderAt, size int64) (string, error) {
	name := "agent-" + shortHash(agentForm+identity)
	r, err := s.cached(ctx, name, func() (*tree, record, error) {
		t, p := newTree(), part(program, size)
		err := t.file(AgentPath, 0o555, p.length(), func() (io.ReadCloser, error) { return io.NopCloser(p.read()), nil })
		return t, record{Rootfs: Rootfs{Ref: "agent"}}, err
	})
	if err != nil {
		return "", fmt.Errorf("make agent image: %w", err)
	}
	return r.Rootfs.Image, nil
}

// executable is the path of this process's executable. On Linux it leads to that very
// file, whatever its name has become.
func executable() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// openProgram opens the program's file and notes how that very file looks, so
// that no exchange of the path can come between. The path is not noted:
// /proc/self/exe and the file that it leads to are one program.
func openProgram(path string) (*os.File, seen, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, seen{}, fmt.Errorf("open program: %w", err)
	}
	now, regular, err := seenOf(f)
	if err != nil {
		_ = f.Close()
		return nil, seen{}, fmt.Errorf("stat program: %w", err)
	}
	if !regular || now.Size == 0 || now.Size > maxProgram {
		_ = f.Close()
		return nil, seen{}, errors.New("open program: it is not a file of 1 to " + strconv.Itoa(maxProgram) + " bytes")
	}
	return f, now, nil
}
