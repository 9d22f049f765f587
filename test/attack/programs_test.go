//go:build linux

package attack_test

// attack is one way to attack the machine from inside a sandbox. Its program prints a
// line that begins with ESCAPED for what must not be.
type attack struct {
	name string
	// flags are of the sandbox's create.
	flags   []string
	program string
	// hostKernel says that it is about a kernel which is the host's.
	hostKernel bool
	// alone gives it a sandbox of its own, for it leaves something. What has flags is
	// alone too.
	alone bool
	// ends says that the program may be killed for what it does.
	ends bool
}

// enginePrelude is in front of every program.
const enginePrelude = `
import ctypes, errno, os, resource, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(nr, *args)
    return r, ctypes.get_errno()
def bad(*what):
    print("ESCAPED:", *what, flush=True)
def reads(path):
    try:
        with open(path, "rb") as f: return bool(f.read(1))
    except OSError: return False
def writes(path, data=b"1"):
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError: return False
    try:
        os.write(fd, data); return True
    except OSError: return False
    finally: os.close(fd)
`

// attacks are named as in the collection that they are from. What is about floods of
// output, execs and archives is tested elsewhere, once for all engines.
var attacks = []attack{
	{name: "A01 a fork bomb", flags: []string{"--pids", "64"}, program: `
made = 0
while made < 500:
    try:
        if os.fork() == 0: time.sleep(20); os._exit(0)
    except OSError: break
    made += 1
print("made", made)
if made > 64: bad("made", made)
`},
	{name: "A02 memory by every way", flags: []string{"--memory", "256MiB"}, ends: true, program: `
held = []
try:
    for n in range(100):
        with open(f"/dev/shm/{n}", "wb") as f: f.write(b"x" * (8 << 20))
except OSError: pass
for n in range(200): held.append(bytearray(b"x") * (8 << 20))
bad("took", len(held) * 8, "MiB")
`},
	{name: "A03 disks", flags: []string{"--disk", "64MiB"}, program: `
# What is in gVisor's /dev is its memory, which has a limit.
for dir, most in (("/var", 80), ("/dev/shm", 80), ("/dev", 256 if ENGINE == "gvisor" else 2), ("/run", 80)):
    n = 0
    try:
        with open(dir + "/fill", "wb") as f:
            while n < 256: f.write(b"x" * (1 << 20)); f.flush(); n += 1
    except OSError: pass
    try: os.unlink(dir + "/fill")
    except OSError: pass
    if n > most: bad(dir, "took", n, "MiB")
`},
	{name: "A03 inodes", hostKernel: true, flags: []string{"--disk", "16MiB"}, program: `
n = 0
try:
    os.mkdir("/var/many")
    while n < 50000: open(f"/var/many/{n}", "w").close(); n += 1
except OSError: pass
if n >= 50000: bad("made", n, "files in 16 MiB")
`},
	{name: "A06 descriptors, keys and watches", program: `
held = []
try:
    while len(held) < 200000: held.append(os.open("/dev/null", 0))
except OSError: pass
for fd in held: os.close(fd)
n = 0
while n < 5000 and call(248, b"user", b"k%d" % n, b"x" * 100, 100, -4)[0] >= 0: n += 1
if n: bad("keys of the host's kernel:", n) if os.path.exists("/proc/self/attr") else print("keys of its own", n)
`},
	{name: "A07 priorities", program: `
if call(144, 0, 1, ctypes.byref(ctypes.c_int(50)))[0] == 0: bad("runs in real time")
try:
    os.nice(-5); bad("is nicer than it may be")
except OSError: pass
`, hostKernel: true},
	{name: "A08 orphans that hide", alone: true, program: `
for n in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for fd in range(3): os.close(fd)
            time.sleep(1000)
        os._exit(0)
print("hidden")
`},
	{name: "A09 signals", alone: true, program: `
for pid in (1, -1):
    for sig in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM):
        if pid == -1 and sig in (signal.SIGKILL, signal.SIGSTOP): continue
        signal.signal(signal.SIGSEGV, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try: os.kill(pid, sig)
        except OSError: pass
if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)
`},
	{name: "A10 names", program: `
os.chdir("/workspace")
for name in (b"\xff\xfe", b"a\nb", b"\x1b[2J", b"x" * 255, "\u202egnp.exe".encode(), b"-rf", b" "):
    open(name, "w").close()
try: subprocess.run(["true"] + ["x" * 100000] * 100); bad("ten megabytes of arguments")
except OSError: pass
`},
	{name: "A11 a deep tree", alone: true, program: `
os.chdir("/workspace")
for n in range(3000):
    os.mkdir("d"); os.chdir("d")
`},
	{name: "A12 ways into the kernel", program: `
attr = ctypes.create_string_buffer(128)
for name, nr, args in (("io_uring", 425, (8, attr)), ("bpf", 321, (0, attr, 128)), ("perf", 298, (attr, 0, -1, -1, 0)), ("userfaultfd", 323, (0,)),
                       ("kexec", 246, (0, 0, 0, 0)), ("init_module", 175, (attr, 1, b"")), ("open_by_handle_at", 304, (-100, attr, 0))):
    if call(nr, *args)[0] >= 0: bad(name)
`},
	{name: "A15 the agent's limits, share and signals", program: `
# By every thread of the agent's that can be found, and by those that hide.
threads = sorted({1, *map(int, os.listdir("/proc/1/task")), *(n for n in range(2, 400) if os.path.isdir(f"/proc/1/task/{n}"))})
none, param, mask = struct.pack("QQ", 0, 0), struct.pack("i", 0), struct.pack("Q", 1)
idle = struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)
buf = ctypes.create_string_buffer(64)
iov = struct.pack("PN", ctypes.addressof(buf), 8)
there = struct.pack("PN", 0x400000, 8)
for t in threads:
    for name, nr, args in (("limits", 302, (t, 7, none, 0)), ("reads limits of", 302, (t, 7, 0, buf)), ("scheduler", 144, (t, 5, param)), ("parameters", 142, (t, param)),
                           ("attributes", 314, (t, idle, 0)), ("memory", 310, (t, iov, 1, there, 1, 0)), ("writes memory", 311, (t, iov, 1, there, 1, 0)),
                           ("pages", 279, (t, 0, 0, 0, 0, 0)), ("moves pages", 256, (t, 8, struct.pack("Q", 1), struct.pack("Q", 1))), ("kcmp", 312, (os.getpid(), t, 1, 0, 0)),
                           ("seizes", 101, (0x4206, t, 0, 0)), ("attaches", 101, (16, t, 0, 0)), ("perf", 298, (buf, t, -1, -1, 0)), ("robust list", 274, (t, buf, buf))):
        if ENGINE == "gvisor" and name in ("reads limits of", "robust list"): continue # of its own kernel, and harmless
        if call(nr, *args)[0] >= 0: bad(name, "of", t)
for name, nr, args in (("affinity", 203, (1, 8, mask)), ("priority", 141, (0, 1, 19)), ("disk priority", 251, (1, 1, 3 << 13))):
    if call(nr, *args)[0] >= 0: bad(name, "of the agent")
if ENGINE != "gvisor": # whose kernel takes these and does nothing with them
    for name, nr, args in (("priority", 141, (1, 1, 19)), ("disk priority", 251, (2, 1, 3 << 13))):
        if call(nr, *args)[0] >= 0: bad(name, "of the agent's group")
    for name, nr, args in (("priority", 141, (2, 0, 19)), ("disk priority", 251, (3, 0, 3 << 13))):
        if call(nr, *args)[0] >= 0: bad(name, "of all that root has")
pidfd = call(434, 1, 0)[0]
if pidfd >= 0:
    for name, nr, args in (("pidfd_getfd", 438, (pidfd, 3, 0)), ("process_madvise", 440, (pidfd, there, 1, 21, 0)), ("process_mrelease", 448, (pidfd, 0)), ("setns", 308, (pidfd, 0x20000000))):
        if call(nr, *args)[0] >= 0: bad(name)
# What these do is seen by whether the agent still answers.
r, w = os.pipe2(os.O_NONBLOCK)
import fcntl
for sig in range(1, 65):
    info = struct.pack("iii", sig, 0, -1) + bytes(116)
    call(62, 1, sig); call(129, 1, sig, info)
    if pidfd >= 0: call(424, pidfd, sig, 0, 0)
    for t in threads: call(234, 1, t, sig); call(200, t, sig); call(297, 1, t, sig, info)
    if ENGINE == "gvisor": continue # which sends any signal for a descriptor, and whose sandbox ends
    for owner in ((0, 1), (1, 1)):
        try:
            fcntl.fcntl(r, 15, struct.pack("ii", *owner)); fcntl.fcntl(r, 10, sig); fcntl.fcntl(r, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            os.write(w, b"x"); os.read(r, 1)
        except OSError: pass
def harmless(f): return ENGINE == "gvisor" and f in ("oom_score_adj", "coredump_filter") # whose kernel keeps the number, no more
for t in threads:
    for dir in (f"/proc/{t}", f"/proc/1/task/{t}", f"/proc/{t}/task/1"):
        for path, dirs, files in os.walk(dir):
            dirs[:] = [d for d in dirs if d in ("attr", "net", "ns")]
            for f in files:
                if not harmless(f) and writes(f"{path}/{f}", b"0"): bad("writes", f"{path}/{f}")
        for f in ("oom_score_adj", "oom_adj", "autogroup", "coredump_filter", "clear_refs", "timerslack_ns", "sched", "comm", "attr/current"):
            for data in (b"0", b"19", b"1000"):
                if not harmless(f) and writes(f"{dir}/{f}", data): bad("writes", data, "to", f"{dir}/{f}")
# And what programs do to themselves goes on.
if ENGINE != "gvisor":
    import threading
    tid = threading.get_native_id()
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
    os.setpriority(os.PRIO_PROCESS, os.getpid(), 1); os.sched_setaffinity(tid, os.sched_getaffinity(0))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))
`},
	{name: "B01 what /proc gives away", program: `
for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/auxv", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg", "/proc/1/root/etc/passwd"):
    if reads(path): bad("reads", path)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/self/exe", "/proc/1/exe", "/proc/irq/default_smp_affinity",
             "/sys/kernel/uevent_helper", "/sys/power/state", "/proc/acpi/wakeup"):
    try: data = open(path, "rb").read(256) if "sys/kernel/core" in path else b"h"
    except OSError: data = b"h"
    if writes(path, data or b"core"): bad("writes", path)
for fd in range(64):
    try: bad("sees the agent's descriptor", fd, os.readlink(f"/proc/1/fd/{fd}"))
    except OSError: pass
    if reads(f"/proc/1/fd/{fd}"): bad("reads the agent's descriptor", fd)
`},
	{name: "B02 groups", program: `
for root, dirs, files in os.walk("/sys/fs/cgroup"):
    for f in files:
        if f in ("release_agent", "devices.allow", "cgroup.procs", "tasks", "memory.max", "pids.max", "memory.limit_in_bytes") and writes(os.path.join(root, f), b"0"): bad("writes", root, f)
`},
	{name: "B03 mounts", hostKernel: true, program: `
os.makedirs("/tmp/m", exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"overlay", b"devpts"):
    if libc.mount(b"x", b"/tmp/m", kind, 0, b"") == 0: bad("mounts", kind)
if libc.mount(b"/", b"/tmp/m", b"", 4096, b"") == 0: bad("binds the root")
for target in (b"/proc/keys", b"/proc/sys", b"/sys/kernel", b"/dev", b"/"):
    if libc.umount2(target, 2) == 0: bad("unmounts", target)
for name, nr, args in (("fsopen", 430, (b"tmpfs", 0)), ("open_tree", 428, (-100, b"/", 1)), ("move_mount", 429, (-100, b"/tmp", -100, b"/tmp/m", 0)),
                       ("mount_setattr", 442, (-100, b"/", 0, 0, 0)), ("pivot_root", 155, (b"/tmp", b"/tmp/m"))):
    if call(nr, *args)[0] >= 0: bad(name)
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x02000000, 0x04000000, 0x08000000, 0x00000080):
    if call(272, flag)[0] == 0: bad("unshares %x" % flag)
    if flag != 0x80:
        r, e = call(56, flag | signal.SIGCHLD, 0, 0, 0, 0)
        if r == 0: os._exit(0)
        if r > 0: bad("clones %x" % flag)
if call(435, b"\0" * 88, 88)[1] != errno.ENOSYS: bad("clone3 is there")
for ns in ("user", "mnt", "net", "pid"):
    try:
        if libc.setns(os.open("/proc/1/ns/" + ns, 0), 0) == 0: bad("enters", ns)
    except OSError: pass
`},
	{name: "B04 the agent", program: `
for pid in [1] + [int(t) for t in os.listdir("/proc/1/task")]:
    if libc.ptrace(16, pid, 0, 0) == 0: bad("attaches", pid)
    if libc.ptrace(0x4206, pid, 0, 0) == 0: bad("seizes", pid)
buf = ctypes.create_string_buffer(64)
class iov(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
for addr in (0x400000, 0x10000, 0xc000000000):
    for nr in (310, 311):
        if call(nr, 1, ctypes.byref(iov(ctypes.addressof(buf), 64)), 1, ctypes.byref(iov(addr, 64)), 1, 0)[0] > 0: bad("touches its memory", nr)
fd, _ = call(434, 1, 0)
if fd >= 0:
    for n in range(20):
        if call(438, fd, n, 0)[0] >= 0: bad("takes its descriptor", n)
`},
	{name: "B05 sockets of the host", program: `
for root in ("/run", "/var/run", "/tmp", "/root", "/home", "/workspace", "/.cloche"):
    for dir, _, files in os.walk(root):
        for f in files:
            try:
                if stat.S_ISSOCK(os.lstat(os.path.join(dir, f)).st_mode): bad("socket", dir, f)
            except OSError: pass
try:
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        if len(line.split()) > 7: bad("socket", line)
except OSError: pass
`},
	{name: "B06 descriptors that leaked", program: `
for fd in range(3, 1024):
    try: bad("descriptor", fd, os.readlink(f"/proc/self/fd/{fd}")) if fd in [int(n) for n in os.listdir("/proc/self/fd")] and os.fstat(fd) else None
    except OSError: pass
if os.getcwd() != "/workspace": bad("begins at", os.getcwd())
for link in ("/proc", "/sys", "/dev"):
    if os.path.islink(link): bad(link, "is a link")
`},
	{name: "B07 more rights by a file", program: `
import shutil
shutil.copy("/usr/bin/id", "/tmp/id")
try: os.chmod("/tmp/id", 0o6755)
except OSError: pass
if resource.getrlimit(resource.RLIMIT_CORE)[1] > 1 and resource.getrlimit(resource.RLIMIT_CORE)[0] > 1 and os.path.exists("/proc/self/attr"): bad("dumps core")
status = open("/proc/self/status").read()
if "NoNewPrivs:\t1" not in status: bad("new privileges")
pid = os.fork()
if pid == 0:
    try: os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
    except OSError: os._exit(0) # the only user
    if b"euid=0" in subprocess.run(["/tmp/id"], capture_output=True).stdout: bad("a set-uid program works")
    os._exit(0)
os.waitpid(pid, 0)
`},
	{name: "B08 words put into a terminal", program: `
import fcntl, pty, termios
m, s = pty.openpty()
for fd in (m, s):
    for name, req in (("TIOCSTI", 0x5412), ("TIOCSTI with high bits", 0x5412 | 1 << 32), ("TIOCLINUX", 0x541c)):
        if call(16, fd, req, b"x")[0] == 0: bad(name)
`},
	{name: "B09 sockets that reach the kernel", program: `
for name, family, kind, proto in (("packet", 17, 3, 0x300), ("alg", 38, 5, 0), ("vsock", 40, 1, 0), ("raw", 2, 3, 1), ("raw6", 10, 3, 58), ("netfilter", 16, 3, 12),
                                  ("audit", 16, 3, 9), ("can", 29, 3, 1), ("bluetooth", 31, 3, 1), ("sctp", 2, 1, 132), ("rds", 21, 5, 0), ("tipc", 30, 1, 0), ("xdp", 44, 3, 0)):
    try: socket.socket(family, kind, proto); bad(name)
    except OSError: pass
`, hostKernel: true},
	{name: "B09 other sets of calls", hostKernel: true, program: `
import mmap
def run(code):
    m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    m.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
# mov eax, 20 (getpid of i386); int 0x80; cdqe; ret
for name, code in (("i386", b"\xb8\x14\x00\x00\x00\xcd\x80\x48\x98\xc3"), ("x32", b"\xb8\x27\x00\x00\x40\x0f\x05\xc3")):
    pid = os.fork()
    if pid == 0:
        r = run(code)
        if r != -errno.ENOSYS: bad(name, "answers", r)
        os._exit(0)
    os.waitpid(pid, 0)
`},
	{name: "B10 devices", program: `
for major, minor in ((1, 1), (8, 0), (254, 0), (10, 232), (10, 229)):
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        try: os.mknod("/tmp/dev", kind | 0o666, os.makedev(major, minor))
        except OSError: continue
        if reads("/tmp/dev"): bad("made and read a device", major, minor)
        os.unlink("/tmp/dev")
# These three are of gVisor's own kernel.
for name in set(os.listdir("/dev")) - ({"char", "fuse", "net"} if ENGINE == "gvisor" else set()):
    if name not in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "console"): bad("device", name)
for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"):
    if not os.path.lexists("/dev/" + name): bad("no /dev/" + name)
`},
	{name: "B12 decisions by what may change", hostKernel: true, program: `
import threading
high = 1 << 32
# What is decided is decided by registers, of which some have a half that says nothing.
for name, nr, args in (("unshare", 272, (0x10000000 | high,)), ("socket", 41, (38 | high, 5, 0)), ("packet", 41, (17 | high, 3, 0x300)), ("TIOCSTI", 16, (0, 0x5412 | high, b"x"))):
    if call(nr, *args)[0] >= 0: bad(name, "with high bits")
r, e = call(56, 0x10000000 | high | signal.SIGCHLD, 0, 0, 0, 0)
if r == 0: os._exit(0)
if r > 0: bad("clones with high bits")
# What lies in memory can be changed after it was looked at: no decision is made of it.
flags = (ctypes.c_uint64 * 11)()
end = time.time() + 0.3
def change():
    while time.time() < end: flags[0] = 0x10000000; flags[0] = 0
t = threading.Thread(target=change); t.start()
while time.time() < end:
    r, e = call(435, flags, 88)
    if r == 0: os._exit(0)
    if e != errno.ENOSYS: bad("clone3", r, e); break
    if call(437, -100, b"/tmp/made", flags, 24)[1] != errno.ENOSYS: bad("openat2"); break
t.join()
# A filter of its own that lets everything through undoes none.
class code(ctypes.Structure): _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class prog(ctypes.Structure): _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(code))]
one = code(6, 0, 0, 0x7fff0000)
call(317, 1, 0, ctypes.byref(prog(1, ctypes.pointer(one))))
if libc.mount(b"x", b"/tmp", b"tmpfs", 0, b"") == 0 or call(272, 0x10000000)[0] == 0: bad("undid the filter")
`},
	{name: "B13 the agent's token", program: `
for pid in os.listdir("/proc"):
    if pid.isdigit() and pid != str(os.getpid()):
        for what in ("environ", "cmdline"):
            try: data = open(f"/proc/{pid}/{what}", "rb").read()
            except OSError: continue
            if b"token" in data: bad("token in", pid, what)
`},
}
