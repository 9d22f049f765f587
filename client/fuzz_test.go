package client

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/cloche-dev/cloche"
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
			if cloche.CodeOf(err) != cloche.CodeInternal {
				t.Fatal(err)
			}
			return
		}
		kind := byte(cloche.FrameStdout)
		if ev.Stream == cloche.Stderr {
			kind = cloche.FrameStderr
		}
		if kind != data[0] || !bytes.Equal(ev.Data, data[cloche.FrameHeaderLen:]) {
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
			if cloche.CodeOf(err) != cloche.CodeInternal {
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
			if cloche.CodeOf(err) != cloche.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		if network != "unix" && network != "tcp" || addr == "" || base == "" {
			t.Fatalf("%q %q %q", network, addr, base)
		}
	})
}
