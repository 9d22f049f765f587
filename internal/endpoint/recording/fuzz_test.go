package recording

import (
	"bytes"
	"net/http/httptest"
	"reflect"
	"testing"
)

// FuzzRecording: whatever is read, what is taken can be answered with, and is the same
// when it was written and is read again.
func FuzzRecording(f *testing.F) {
	f.Add([]byte("{\"recording\":1}\n" + `{"n":1,"request":{"method":"POST","path":"/a","body":{"text":"{}"}},"response":{"status":200,"header":{"A":["b"]},"chunks":[{"ms":1,"text":"x"},{"ms":2,"b64":"/w=="}]}}` + "\n"))
	f.Add([]byte("{\"recording\":1}\n" + `{"n":1,"request":{"method":"GET","path":"/"},"omitted":"x"}` + "\n"))
	f.Add([]byte("{\"recording\":1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var all []Exchange
		h, _, err := scan(bytes.NewReader(data), func(x Exchange, off int64, size int) error {
			if _, err := parse(data[off : off+int64(size)]); err != nil {
				t.Fatalf("at %d of %d: %v", off, size, err)
			}
			all = append(all, x)
			return nil
		})
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := encode(&out, h); err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			if d := difference(x.Request, x.Request); d != "" {
				t.Fatalf("it differs from itself: %s", d)
			}
			w := httptest.NewRecorder()
			for _, c := range x.Response.Chunks {
				w.Write(c.Bytes())
			}
			if err := encode(&out, x); err != nil {
				t.Fatal(err)
			}
		}
		i := 0
		if _, _, err := scan(&out, func(x Exchange, _ int64, _ int) error {
			a, b := all[i], x
			if a.Request.digest() != b.Request.digest() || a.Omitted != b.Omitted || a.Response.Status != b.Response.Status || len(a.Response.Header) != len(b.Response.Header) || len(a.Response.Chunks) != len(b.Response.Chunks) {
				t.Fatalf("%+v\nbecame\n%+v", a, b)
			}
			for j := range a.Response.Chunks {
				if !reflect.DeepEqual(a.Response.Chunks[j].Bytes(), b.Response.Chunks[j].Bytes()) && len(a.Response.Chunks[j].Bytes()) > 0 {
					t.Fatalf("%+v\nbecame\n%+v", a, b)
				}
			}
			i++
			return nil
		}); err != nil || i != len(all) {
			t.Fatal(i, err)
		}
	})
}
