// Package crash cuts the power of a daemon's disk, thousands of times, and looks whether
// the next daemon still has what the last one had promised.
//
// A file of a FUSE filesystem, served by a process of its own, lies behind a loop device
// with the daemon's home on it. It records each block that is written and each flush. From
// the record, images are made as a power cut could have left the disk: all that was written
// before a flush, and of what came later any part. A daemon is started on each of them.
package crash

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// What is in the record of a disk.
const (
	wrote   = 'w' // data at an offset
	flushed = 'f'
	marked  = 'm' // a number, at the offset, that the test gave
)

// entry is one of them.
type entry struct {
	kind byte
	off  int64
	data []byte
}

// appendTo writes an entry: its kind, its offset, its length and its data.
func (e entry) appendTo(w io.Writer) error {
	var head [13]byte
	head[0] = e.kind
	binary.LittleEndian.PutUint64(head[1:], uint64(e.off))
	binary.LittleEndian.PutUint32(head[9:], uint32(len(e.data)))
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(e.data)
	return err
}

// readRecord reads the record of a disk.
func readRecord(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	var all []entry
	for {
		var head [13]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		e := entry{kind: head[0], off: int64(binary.LittleEndian.Uint64(head[1:]))}
		e.data = make([]byte, binary.LittleEndian.Uint32(head[9:]))
		if _, err := io.ReadFull(in, e.data); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

// disk is the file that the loop device lies on. Its methods are called by the kernel.
type disk struct {
	fs.Inode
	image *os.File
	size  uint64

	mu     sync.Mutex
	record *bufio.Writer
	failed error
}

func (d *disk) note(e entry) {
	if err := e.appendTo(d.record); err != nil {
		d.failed = err
	}
}

// Getattr implements fs.NodeGetattrer.
func (d *disk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size, out.Mode = d.size, fuse.S_IFREG|0o600
	return 0
}

// Open implements fs.NodeOpener.
func (d *disk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

// Read implements fs.NodeReader.
func (d *disk) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, err := d.image.ReadAt(dest, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, syscall.EIO
	}
	return fuse.ReadResultData(dest[:n]), 0
}

// Write implements fs.NodeWriter.
func (d *disk) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.image.WriteAt(data, off); err != nil {
		return 0, syscall.EIO
	}
	d.note(entry{wrote, off, data})
	return uint32(len(data)), 0
}

// Fsync implements fs.NodeFsyncer: it is a flush of the disk's cache.
func (d *disk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(entry{kind: flushed})
	return 0
}

// Flush implements fs.NodeFlusher: a close of the file is nothing.
func (d *disk) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// serveDisk serves the image at a directory, under the name disk, until its input ends.
// Each line of that is a number, which is marked in the record and answered.
func serveDisk(image, record, dir string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	out, err := os.Create(record)
	if err != nil {
		return err
	}
	defer out.Close()
	d := &disk{image: f, size: uint64(info.Size()), record: bufio.NewWriterSize(out, 1<<20)}
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV},
		OnAdd: func(ctx context.Context) {
			root.AddChild("disk", root.NewPersistentInode(ctx, d, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var n int64
		if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
			return err
		}
		d.mu.Lock()
		d.note(entry{kind: marked, off: n})
		err := errors.Join(d.failed, d.record.Flush())
		d.mu.Unlock()
		if err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return errors.Join(server.Unmount(), d.failed, d.record.Flush())
}

// recorder is the process that serves a disk.
type recorder struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	mark int64
}

// startRecorder serves an image at a directory.
func startRecorder(ctx context.Context, image, record, dir string) (*recorder, error) {
	r := &recorder{cmd: exec.CommandContext(ctx, "/proc/self/exe")}
	r.cmd.Env = append(os.Environ(), roleVar+"=disk", "CRASH_IMAGE="+image, "CRASH_RECORD="+record, "CRASH_DIR="+dir)
	r.cmd.Stderr = os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	return r, r.answer("ready")
}

func (r *recorder) answer(want string) error {
	line, err := r.out.ReadString('\n')
	if err != nil || line != want+"\n" {
		return fmt.Errorf("the process that serves the disk said %q: %w", line, err)
	}
	return nil
}

// next puts a number into the record, one more than the last.
func (r *recorder) next() error {
	r.mark++
	if _, err := fmt.Fprintln(r.in, r.mark); err != nil {
		return err
	}
	return r.answer("ok")
}

// stop ends the record.
func (r *recorder) stop() error { return errors.Join(r.in.Close(), r.cmd.Wait()) }
