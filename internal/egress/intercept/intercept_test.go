package intercept

import (
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// TestAuthorityIsTheSameAfterItWasStored: what a sandbox trusts it still trusts
// when another daemon signs.
func TestAuthorityIsTheSameAfterItWasStored(t *testing.T) {
	a, err := NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadAuthority(stored)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.Certificate()) || bytes.Contains(a.Certificate(), []byte("PRIVATE")) {
		t.Fatal("what goes into the sandbox is not the certificate alone")
	}
	c, err := b.leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "api.example.com"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "evil.org"}); err == nil {
		t.Error("it is good for another host")
	}
	other, err := NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(other.Certificate())
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "api.example.com"}); err == nil {
		t.Error("another sandbox trusts it")
	}
	for _, bad := range [][]byte{nil, []byte("x"), a.Certificate(), stored[:len(stored)/2], bytes.Repeat(stored, 100)} {
		if _, err := LoadAuthority(bad); err == nil {
			t.Errorf("%d bytes were taken for an authority", len(bad))
		}
	}
}

// TestCertificatesAreForTheirUse: the certificate of a host serves TLS for this host and signs
// nothing, and an authority signs hosts only.
func TestCertificatesAreForTheirUse(t *testing.T) {
	a, err := NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("it is good for a client")
	}
	if c.Leaf.IsCA || c.Leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(c.Leaf.DNSNames) != 1 || len(c.Leaf.IPAddresses) != 0 {
		t.Errorf("it is good for more than one host: %v, %v, %v", c.Leaf.IsCA, c.Leaf.KeyUsage, c.Leaf.DNSNames)
	}
	if a.key.Equal(c.PrivateKey) {
		t.Error("a host has the key of the authority")
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{"evil.org"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, c.Leaf, a.leafKey.Public(), c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	between := x509.NewCertPool()
	between.AddCert(c.Leaf)
	if _, err := forged.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, DNSName: "evil.org"}); err == nil {
		t.Error("it signs for other hosts")
	}
	if !a.cert.IsCA || !a.cert.MaxPathLenZero || a.cert.MaxPathLen != 0 {
		t.Error("there may be other authorities below it")
	}
	// A key with the certificate of another is no authority.
	b, err := NewAuthority("y")
	if err != nil {
		t.Fatal(err)
	}
	key, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	if _, err := LoadAuthority(append(pem.EncodeToMemory(block), b.Certificate()...)); err == nil {
		t.Error("a key was taken with the certificate of another")
	}
}

func TestLeavesAreKeptAndRenewed(t *testing.T) {
	a, err := NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a.now = func() time.Time { return now }
	get := func(n rule.Name) *tls.Certificate {
		t.Helper()
		c, err := a.leaf(n)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get("a.example.com")
	if get("a.example.com") != first {
		t.Error("it was made twice")
	}
	now = now.Add(leafLife - leafRenew)
	if c := get("a.example.com"); c == first || c.Leaf.NotAfter.Before(now.Add(leafRenew)) {
		t.Error("it was not renewed")
	}
	for i := range 2 * maxLeaves {
		get(rule.Name(fmt.Sprintf("h%d.example.com", i)))
	}
	if len(a.leaves) > maxLeaves {
		t.Errorf("%d are kept", len(a.leaves))
	}
	get(rule.Name(strings.Repeat("a.", 60) + "example.com"))
}

// TestShownTextIsPlain: what is told of a sandbox's text is printable ASCII, and not
// longer than it need be.
func TestShownTextIsPlain(t *testing.T) {
	long := strings.Repeat("a", 200)
	for in, want := range map[string]string{
		"": "", " a~": " a~", "\x1f\x7f\r\n\x1b[2J": "????" + "?[2J", "\u202e": "?", long: long, long + "b": long + "...",
	} {
		if got := shown(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

// TestJavaKeyStore: the file has the header, entries and digest that Java's KeyStore reads.
func TestJavaKeyStore(t *testing.T) {
	a, err := NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("y")
	if err != nil {
		t.Fatal(err)
	}
	b := NewTrust(a, other.Certificate()).Java
	body, digest := b[:len(b)-sha1.Size], b[len(b)-sha1.Size:]
	want := sha1.Sum(append([]byte("\x00c\x00h\x00a\x00n\x00g\x00e\x00i\x00tMighty Aphrodite"), body...))
	if !bytes.Equal(digest, want[:]) {
		t.Error("its digest is another")
	}
	take := func(n int) []byte {
		if n > len(body) {
			t.Fatal("it is too short")
		}
		var out []byte
		out, body = body[:n], body[n:]
		return out
	}
	number := func() int { return int(binary.BigEndian.Uint32(take(4))) }
	text := func() string { return string(take(int(binary.BigEndian.Uint16(take(2))))) }
	if magic, version, n := number(), number(), number(); magic != 0xfeedfeed || version != 2 || n != 2 {
		t.Fatalf("its header is %x, %d, %d", magic, version, n)
	}
	for i, der := range [][]byte{a.Raw(), other.Raw()} {
		kind, alias, made, typ := number(), text(), time.UnixMilli(int64(binary.BigEndian.Uint64(take(8)))), text()
		if kind != 2 || alias != fmt.Sprintf("cloche-%d", i) || time.Since(made).Abs() > time.Hour || typ != "X.509" || !bytes.Equal(take(number()), der) {
			t.Errorf("entry %d: %d, %q, %s, %q", i, kind, alias, made, typ)
		}
	}
	if len(body) != 0 {
		t.Errorf("%d bytes are left", len(body))
	}
}

func FuzzReplace(f *testing.F) {
	s := Secret{Name: "key", Placeholder: NewPlaceholder()}
	f.Add("Bearer ", "", uint8(1))
	f.Add(marker, marker, uint8(2))
	f.Fuzz(func(t *testing.T, before, after string, n uint8) {
		text := before + strings.Repeat(s.Placeholder, int(n%4)) + after
		got := replace(text, s, "VALUE")
		if want := strings.ReplaceAll(text, s.Placeholder, "VALUE"); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
		if contains(text, s) != strings.Contains(text, s.Placeholder) {
			t.Errorf("%q: contains is %v", text, contains(text, s))
		}
		coded := "Basic " + base64.StdEncoding.EncodeToString([]byte(text))
		if fieldOf(s, http.Header{"X": {coded}}) == "" && strings.Contains(text, s.Placeholder) {
			t.Errorf("%q is not found in %q", text, coded)
		}
	})
}

// FuzzMask: however a body is cut into reads, no secret is in what comes out, and
// the rest is as it was.
func FuzzMask(f *testing.F) {
	f.Add([]byte("before s3cret-value after"), "s3cret-value", "another", uint8(1))
	f.Add([]byte("aaaaaaaaaaab"), "aaaaaab", "aaaaaaaa", uint8(3))
	f.Add([]byte("s3cret-s3cret-value"), "s3cret-value", "s3cret", uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, one, two string, cut uint8) {
		m := newMasks([]string{one, two})
		if strings.Contains(one+two, "*") {
			return // what hides could make one
		}
		for _, r := range []io.Reader{bytes.NewReader(body), iotest.OneByteReader(bytes.NewReader(body)), iotest.DataErrReader(bytes.NewReader(body))} {
			b := &maskedBody{ReadCloser: io.NopCloser(r), masks: m}
			got, err := io.ReadAll(readerOf(b, int(cut%40)+1))
			if err != nil || len(got) != len(body) {
				t.Fatalf("%d of %d bytes, %v", len(got), len(body), err)
			}
			for _, secret := range m {
				if bytes.Contains(got, []byte(secret)) {
					t.Errorf("%q has %q in it", got, secret)
				}
			}
			for i := range got {
				if got[i] != body[i] && got[i] != '*' {
					t.Errorf("%q became %q", body, got)
				}
			}
		}
	})
}

// readerOf reads n bytes at most at a time.
func readerOf(r io.Reader, n int) io.Reader {
	return readerFunc(func(p []byte) (int, error) { return r.Read(p[:min(n, len(p))]) })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestOnlyABeginningWaits: what cannot be part of a secret is given at once.
func TestOnlyABeginningWaits(t *testing.T) {
	pr, pw := io.Pipe()
	b := &maskedBody{ReadCloser: pr, masks: newMasks([]string{"s3cret-value"})}
	for _, text := range []string{"data: 1\n\n", "data: s4\n\n"} {
		go io.WriteString(pw, text)
		p := make([]byte, 100)
		if n, err := b.Read(p); err != nil || string(p[:n]) != text {
			t.Errorf("%q, %v", p[:n], err)
		}
	}
	go func() {
		io.WriteString(pw, "xs3cr")
		pw.CloseWithError(io.ErrUnexpectedEOF)
	}()
	if got, err := io.ReadAll(b); err == nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestWhatIsAPlaceholder: one has the marker, the length and the letters, all three.
func TestWhatIsAPlaceholder(t *testing.T) {
	one := NewPlaceholder()
	other := strings.Repeat("x", len(marker)) + one[len(marker):]
	for s, want := range map[string]bool{
		one: true, one + "a": false, one[:len(one)-1]: false, other: false, one[:len(one)-1] + "!": false, marker + strings.Repeat("A", 26): false, "": false,
	} {
		if got := isPlaceholder(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
