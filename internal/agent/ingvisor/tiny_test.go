//go:build linux

package ingvisor

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
)

// tinyELF is the smallest program that exits with 0.
func tinyELF() io.Reader {
	const base = 0x400000
	code := []byte{0x31, 0xff, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05} // xor edi,edi; mov eax,60; syscall
	machine := uint16(62)
	if runtime.GOARCH == "arm64" {
		code = []byte{0x00, 0x00, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4}
		machine = 183
	}
	size := uint64(64 + 56 + len(code))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + 64 + 56), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000),
	} {
		binary.Write(&b, binary.LittleEndian, v)
	}
	b.Write(code)
	return &b
}
