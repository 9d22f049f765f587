// Package resolver answers the DNS questions of one sandbox: allowed names get an
// address that stands for them in this sandbox alone, everything else is refused.
// It asks no other server.
package resolver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"sync"

	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// MaxNames is how many names one sandbox may have asked for in its life.
const MaxNames = 16384

// ErrFull says that a sandbox has asked for MaxNames names.
var ErrFull = errors.New("the table of names is full")

// Entry is one name and the address that stands for it.
type Entry struct {
	Name rule.Name
	Addr netip.Addr
}

// Store keeps entries. Add returns when the entry outlives this process.
type Store interface {
	Add(Entry) error
}

// Table is the names of one sandbox. An address is stored before it is
// returned, and is never given to another name. Tables are safe for any number of
// goroutines.
type Table struct {
	store Store // nil keeps the table in memory only

	mu     sync.Mutex
	byName map[rule.Name]netip.Addr
	names  []rule.Name // the address of names[i] is addressOf(i)
}

// NewTable makes a table of what was stored before, in the order in which it was
// stored. Entries that this package cannot have stored are an error: a table
// must not point at the wrong name. A nil store keeps nothing.
func NewTable(store Store, before []Entry) (*Table, error) {
	t := &Table{store: store, byName: make(map[rule.Name]netip.Addr, len(before))}
	for i, e := range before {
		if i >= MaxNames || e.Addr != addressOf(i) {
			return nil, fmt.Errorf("read table of names: entry %d has the address %s", i, e.Addr)
		}
		if n, err := rule.ParseName(string(e.Name)); err != nil || n != e.Name {
			return nil, fmt.Errorf("read table of names: entry %d is no name", i)
		}
		if _, ok := t.byName[e.Name]; ok {
			return nil, fmt.Errorf("read table of names: %s has two addresses", e.Name)
		}
		t.byName[e.Name] = e.Addr
		t.names = append(t.names, e.Name)
	}
	return t, nil
}

// addressOf is the address of the i-th name: 198.18.0.1 and on.
func addressOf(i int) netip.Addr {
	base := rule.Names().Addr().As4()
	i++
	return netip.AddrFrom4([4]byte{base[0], base[1] + byte(i>>16), byte(i >> 8), byte(i)})
}

func indexOf(addr netip.Addr) int {
	if !rule.Names().Contains(addr) {
		return -1
	}
	base, a := rule.Names().Addr().As4(), addr.As4()
	return (int(a[1]-base[1])<<16 | int(a[2])<<8 | int(a[3])) - 1
}

// Address is the address that stands for n, a new one when n has none yet.
func (t *Table) Address(n rule.Name) (netip.Addr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if addr, ok := t.byName[n]; ok {
		return addr, nil
	}
	if len(t.names) >= MaxNames {
		return netip.Addr{}, ErrFull
	}
	addr := addressOf(len(t.names))
	if t.store != nil {
		if err := t.store.Add(Entry{n, addr}); err != nil {
			return netip.Addr{}, fmt.Errorf("store name: %w", err)
		}
	}
	t.byName[n] = addr
	t.names = append(t.names, n)
	return addr, nil
}

// Name is what addr stands for.
func (t *Table) Name(addr netip.Addr) (rule.Name, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := indexOf(addr); i >= 0 && i < len(t.names) {
		return t.names[i], true
	}
	return "", false
}

// Entries is a copy of the table, for a fork of the sandbox.
func (t *Table) Entries() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Entry, len(t.names))
	for i, n := range t.names {
		out[i] = Entry{n, addressOf(i)}
	}
	return out
}

// File is a Store that appends a line for each entry. It holds no descriptor
// between two entries: a table changes rarely and there are many. One File at a
// time may write to a path. What Add returned from outlives the process; it is
// not synced, for a sandbox does not outlive its machine.
type File struct {
	path string
	size int64 // of what is whole
}

const maxLine = 16 + 1 + 253 + 1

// OpenFile reads the entries at path and returns the File that adds to them. A
// path that does not exist has none. A last line that was not written whole was
// never returned to a client and is cut off.
func OpenFile(path string) (*File, []Entry, error) {
	f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{path: path}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open table of names: %w", err)
	}
	defer f.Close()
	r := bufio.NewReader(io.LimitReader(f, MaxNames*maxLine+1))
	out := &File{path: path}
	var entries []Entry
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return out, entries, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read table of names: line %d: %w", len(entries)+1, err)
		}
		addr, name, _ := bytes.Cut(line[:len(line)-1], []byte(" "))
		a, err := netip.ParseAddr(string(addr))
		if err != nil {
			return nil, nil, fmt.Errorf("read table of names: line %d is damaged", len(entries)+1)
		}
		entries = append(entries, Entry{rule.Name(name), a})
		out.size += int64(len(line))
	}
}

// Add implements Store. It is called by one goroutine at a time.
func (f *File) Add(e Entry) (err error) {
	file, err := hostfile.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	line := e.Addr.String() + " " + string(e.Name) + "\n"
	// Cutting first also removes what a crash or a full disk left half written.
	if err := file.Truncate(f.size); err != nil {
		return err
	}
	if _, err := file.WriteAt([]byte(line), f.size); err != nil {
		return err
	}
	f.size += int64(len(line))
	return nil
}
