package client

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// FuzzFrame: a binary frame of the daemon's gives its bytes or a typed error.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x07out"))
	f.Add([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		ev, err := decodeFrame(data)
		if err != nil {
			if api.CodeOf(err) != api.CodeInternal {
				t.Fatal(err)
			}
			return
		}
		kind := byte(api.FrameStdout)
		if ev.Stream == api.Stderr {
			kind = api.FrameStderr
		}
		if kind != data[0] || !bytes.Equal(ev.Data, data[api.FrameHeaderLen:]) {
			t.Fatalf("%q became %+v", data, ev)
		}
	})
}

// FuzzMessage: a text frame of the daemon's gives a message that JSON can carry
// again, or a typed error.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"started":{"exec_id":"e"}}`))
	f.Add([]byte(`{"exit":{"exit_code":null,"stdout":{"base64":"/w=="}}}`))
	f.Add([]byte(`{"error":{"code":"denied","message":"no"}}`))
	f.Add([]byte(`{"sandbox":{"created_at":"x"}}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMessage(data)
		if err != nil {
			if api.CodeOf(err) != api.CodeInternal {
				t.Fatal(err)
			}
			return
		}
		if _, err := json.Marshal(m); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzHost: whatever a host is, it gives a client or a typed error.
func FuzzHost(f *testing.F) {
	f.Add("unix:///a/b")
	f.Add("tcp://[::1]:1")
	f.Add("https://box.example")
	f.Add("unix://%2f")
	f.Fuzz(func(t *testing.T, host string) {
		network, addr, base, err := parseHost(host)
		if err != nil {
			if api.CodeOf(err) != api.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		if network != "unix" && network != "tcp" || addr == "" || base == "" {
			t.Fatalf("%q %q %q", network, addr, base)
		}
	})
}

// FuzzSSE: an event stream gives blocks, each of which the format has, and an
// end or a typed error; and what it gives does not depend on how it arrives.
func FuzzSSE(f *testing.F) {
	f.Add([]byte("id: 1\nevent: sandbox.created\ndata: {}\n\n:\n\nid: 2\n\n"), uint8(1))
	f.Add([]byte("data: a\r\ndata:b\r\n\r\n"), uint8(2))
	f.Add([]byte("data\n\nretry: 3\n\nevent:x"), uint8(3))
	f.Add([]byte("\xef\xbb\xbfdata: \x00\n\n"), uint8(7))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		whole, err := blocks(bytes.NewReader(data))
		if err != nil && api.CodeOf(err) != api.CodeInternal {
			t.Fatal(err)
		}
		pieces, perr := blocks(&stutter{data, int(step%16) + 1})
		if (err == nil) != (perr == nil) || !slices.EqualFunc(whole, pieces, func(a, b sseEvent) bool {
			return a.id == b.id && a.name == b.name && bytes.Equal(a.data, b.data)
		}) {
			t.Fatalf("%q and %q", whole, pieces)
		}
		for _, b := range whole {
			if strings.ContainsAny(b.id+b.name, "\n") || len(b.data) > maxEvent {
				t.Fatalf("%+v", b)
			}
			o := api.EventOptions{After: 3}
			err := takeEvent(b, &o, func(ev api.Event) error {
				if ev.Cursor <= 3 {
					t.Fatalf("event %d came again", ev.Cursor)
				}
				return nil
			})
			if o.After < 3 || err != nil && api.CodeOf(err) == "" {
				t.Fatal(o.After, err)
			}
		}
	})
}

func blocks(r io.Reader) (l []sseEvent, err error) {
	s := newSSEReader(r)
	for {
		ev, err := s.next()
		if err == io.EOF {
			return l, nil
		}
		if err != nil {
			return l, err
		}
		ev.data = bytes.Clone(ev.data)
		l = append(l, ev)
	}
}

// stutter gives a few bytes at a time.
type stutter struct {
	data []byte
	n    int
}

func (s *stutter) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.data[:min(s.n, len(s.data))])
	s.data = s.data[n:]
	return n, nil
}

// FuzzAttachOutput: whatever positions a daemon's frames have, no byte comes
// twice, and none is missing without a gap that says so.
func FuzzAttachOutput(f *testing.F) {
	f.Add(int64(0), []byte{0, 3, 3, 3, 1, 5})
	f.Add(int64(10), []byte{0, 200, 5, 1})
	f.Add(int64(1)<<62, []byte{9, 9})
	f.Fuzz(func(t *testing.T, start int64, frames []byte) {
		if start < 0 {
			return
		}
		a := &Attachment{next: start}
		for i := 0; i+1 < len(frames); i += 2 {
			at := uint64(start) + uint64(frames[i])
			ev, err := a.output(&Event{Stream: api.Stdout, Seq: at, Data: make([]byte, frames[i+1])})
			if err != nil {
				if int64(at) >= 0 && int64(at)+int64(frames[i+1]) >= 0 {
					t.Fatal(err)
				}
				return
			}
			if ev == nil {
				continue
			}
			if ev.Gap != nil {
				if ev.Gap.Bytes <= 0 || ev.Gap.Position-ev.Gap.Bytes != start || len(a.unread) != 1 {
					t.Fatalf("%+v after %d", ev.Gap, start)
				}
				start = ev.Gap.Position
				ev, a.unread = &a.unread[0], nil
			}
			if ev.Position != start {
				t.Fatalf("position %d after %d", ev.Position, start)
			}
			start += int64(len(ev.Data))
		}
	})
}
