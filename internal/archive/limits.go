package archive

import "sync/atomic"

// Limits bound an archive. The zero value of a field is its default.
type Limits struct {
	// Entries bounds their number; default 500 000.
	Entries int64
	// Bytes bounds the content of all files together; default 32 GiB.
	Bytes int64
	// Ratio bounds how many times larger than what was read it may become, once
	// it is larger than RatioFrom; default 300.
	Ratio int64
	// RatioFrom is the size up to which Ratio does not count: little that
	// compresses well is no bomb. Default 128 MiB.
	RatioFrom int64
	// Depth bounds the parts of a path; default 256.
	Depth int
	// NameLen bounds a part of a path, in bytes; default 255.
	NameLen int
}

func (l Limits) withDefaults() Limits {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Entries, 500_000)
	def(&l.Bytes, 32<<30)
	def(&l.Ratio, 300)
	def(&l.RatioFrom, 128<<20)
	if l.Depth <= 0 {
		l.Depth = 256
	}
	if l.NameLen <= 0 {
		l.NameLen = 255
	}
	return l
}

// Budget is what several archives that become one thing share, such as the
// layers of an image: limits on their sum. It is safe for concurrent use.
type Budget struct {
	limits  Limits
	entries atomic.Int64
	bytes   atomic.Int64
	names   atomic.Int64
}

// maxNames bounds the bytes of all names together: a reader of an archive
// keeps them in memory.
const maxNames = 256 << 20

// NewBudget makes a budget of l.
func NewBudget(l Limits) *Budget { return &Budget{limits: l.withDefaults()} }

// entry takes one entry with size bytes of content from the budget.
func (b *Budget) entry(name, target string, size int64) error {
	if n := b.entries.Add(1); n > b.limits.Entries {
		return tooLarge("it has more than %d entries", b.limits.Entries)
	}
	if size < 0 {
		return broken("%q has a negative size", clip(name))
	}
	if b.names.Add(int64(len(name)+len(target))) > maxNames {
		return tooLarge("its names have more than %d bytes", maxNames)
	}
	// A single size over the limit must not make the sum wrap around.
	if size > b.limits.Bytes || b.bytes.Add(size) > b.limits.Bytes {
		return tooLarge("its files have more than %d bytes", b.limits.Bytes)
	}
	return nil
}

// unfolded checks that out bytes came of in.
func (b *Budget) unfolded(in, out int64) error {
	if out > b.limits.RatioFrom && out/b.limits.Ratio > in {
		return tooLarge("%d bytes of it unfold to more than %d times as much", in, b.limits.Ratio)
	}
	return nil
}
