import errno, os, select, socket, ssl, struct, sys, time
socket.setdefaulttimeout(20)
def connect(host, port):
    return socket.create_connection((host, port), 20)
def reach(host, port):
    try:
        connect(host, port).close()
        return 'connected'
    except OSError as e:
        return type(e).__name__
def connected(pairs):
    # All at once: without an answer each of them takes its whole timeout.
    waiting, out, end = {}, [], time.time() + 3
    for to in pairs:
        s = socket.socket()
        s.setblocking(False)
        try:
            code = s.connect_ex(to)
        except OSError: # a name that is not resolved
            continue
        if code == 0:
            out.append(to)
        elif code == errno.EINPROGRESS:
            waiting[s] = to
    while waiting and time.time() < end:
        for s in select.select([], list(waiting), [], max(0, end - time.time()))[1]:
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                out.append(waiting[s])
            del waiting[s]
            s.close()
    return out
def question(labels, kind=1, rd=1):
    name = b''.join(bytes([len(l)]) + l for l in labels) + b'\0'
    return struct.pack('>HHHHHH', 7, rd << 8, 1, 0, 0, 0) + name + struct.pack('>HH', kind, 1)
def ask(labels, kind=1, server=('10.88.0.1', 53), wait=20):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(wait)
    try:
        s.connect(server)
        s.send(question(labels, kind))
        a = s.recv(4096)
        return a[3] & 15, struct.unpack('>H', a[6:8])[0]
    except OSError as e:
        return type(e).__name__, 0
    finally:
        s.close()
def talk(data, host='allowed.test', port=80):
    s = connect(host, port)
    try:
        s.sendall(data)
        s.settimeout(10)
        out = b''
        while len(out) < 1 << 16:
            b = s.recv(65536)
            if not b:
                break
            out += b
    except OSError as e:
        out += b' ' + type(e).__name__.encode()
    s.close()
    return out
