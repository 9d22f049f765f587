"""What a user of E2B's Python SDK does, with the SDK as it is. It prints "all done"."""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from e2b import AsyncSandbox, BuildException, CommandExitException, NotFoundException, Sandbox, SandboxException, Template

sb = Sandbox.create(metadata={"suite": "py"}, envs={"X": "1"}, timeout=120)
hi = sb.commands.run("echo hi $X; pwd")
assert (hi.stdout, hi.exit_code) == ("hi 1\n/home/user\n", 0), hi
try:
    sb.commands.run("exit 3")
    raise AssertionError("no error")
except CommandExitException as e:
    assert e.exit_code == 3
cat = sb.commands.run("cat", background=True, stdin=True)
sb.commands.send_stdin(cat.pid, "line\n")
sb.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "line\n"

sb.files.write("a.txt", "hello")
assert sb.files.read("/home/user/a.txt") == "hello"
who = sb.commands.run("id -un; sudo id -un; echo $HOME; ls -l a.txt | cut -d' ' -f3; echo >> a.txt; truncate -s 5 a.txt")
assert who.stdout == "user\nroot\n/home/user\nuser\n", who
assert sb.commands.run("id -un; echo $HOME", user="root").stdout == "root\n/root\n"
assert [f.name for f in sb.files.list("/home/user")] == ["a.txt"]
watch = sb.files.watch_dir("/home/user")
sb.files.write("watched.txt", "x")
seen: list[str] = []
for _ in range(200):
    seen += [f"{e.type.value} {e.name}" for e in watch.get_new_events()]
    if "write watched.txt" in seen:
        break
    time.sleep(0.05)
assert "create watched.txt" in seen and "write watched.txt" in seen, seen
watch.stop()
assert (sb.files.make_dir("d"), sb.files.make_dir("d"), sb.files.exists("zz")) == (True, False, False)

assert [s.sandbox_id for s in Sandbox.list().next_items() if s.metadata == {"suite": "py"}] == [sb.sandbox_id]
end = sb.get_info().end_at
Sandbox.connect(sb.sandbox_id, timeout=1)
assert sb.get_info().end_at == end


async def asynchronous() -> None:
    """The same from the asynchronous client."""
    box = await AsyncSandbox.connect(sb.sandbox_id)
    assert (await box.commands.run("cat /home/user/a.txt")).stdout == "hello"


asyncio.run(asynchronous())
assert (sb.kill(), sb.kill(), sb.is_running()) == (True, False, False)
try:
    sb.get_info()
    raise AssertionError("no error")
except NotFoundException:
    pass

# At the end of its timeout a sandbox is paused, and the next command resumes it with its processes.
sb = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
left = sb.commands.run("sleep 600", background=True)
sb.set_timeout(1)
for _ in range(600):
    if sb.get_info().state == "paused":
        break
    time.sleep(0.1)
assert sb.get_info().state == "paused"
assert sb.commands.run("echo back").stdout == "back\n"
assert [p.pid for p in sb.commands.list()] == [left.pid]
sb.set_timeout(60)

# Forks continue from the memory and the files of a sandbox, and change nothing in it.
sb.files.write("forked.txt", "parent")
forks = sb.fork(count=2, timeout=60)
assert len({f.sandbox_id for f in forks} | {sb.sandbox_id}) == 3, forks
for f in forks:
    assert [p.pid for p in f.commands.list()] == [left.pid]
    assert f.files.read("forked.txt") == "parent"
    f.files.write("forked.txt", "fork")
    f.kill()
assert sb.files.read("forked.txt") == "parent"
assert [p.pid for p in sb.commands.list()] == [left.pid]

# A reboot keeps the files, and ends the processes, also of a sandbox that was paused with its memory.
assert sb.pause()
sb.connect(timeout=60, on_resume="reboot")
assert sb.files.read("forked.txt") == "parent"
assert sb.commands.list() == []
assert sb.pause(mode="filesystem")
assert sb.get_info().state == "paused"
assert sb.connect(timeout=60).files.read("forked.txt") == "parent"

# The network of a sandbox, and a change of it. Nothing is asked of these names.
net = Sandbox.create(timeout=60, network={"allow_out": ["one.test"], "deny_out": ["0.0.0.0/0"]})
net.update_network({"allow_out": ["two.test"], "deny_out": ["0.0.0.0/0"]})
assert net.get_info().network["allow_out"] == ["two.test"], net.get_info().network
net.kill()

# A snapshot of files, and a sandbox that starts from it.
sb.files.write("kept.txt", "kept")
snapshot = sb.create_snapshot(name="saved", mode="filesystem")
assert snapshot.names == ["saved"], snapshot
assert [s.snapshot_id for s in sb.list_snapshots().next_items()] == [snapshot.snapshot_id]
copy = Sandbox.create(snapshot.snapshot_id, timeout=60)
assert copy.files.read("kept.txt") == "kept" and copy.commands.list() == []
copy.kill()

# A snapshot with memory: the programs go on in each sandbox that starts from it.
counting = sb.commands.run("n=0; while true; do n=$((n+1)); echo $n >/tmp/next; mv /tmp/next /tmp/count; sleep 0.1; done", background=True)


def counted(box, more_than):
    """Returns the count of a sandbox when it is larger than a number."""
    end = time.monotonic() + 30
    while not box.files.exists("/tmp/count") or int(box.files.read("/tmp/count")) <= more_than:
        assert time.monotonic() < end, "the program does not count"
        time.sleep(0.05)
    return int(box.files.read("/tmp/count"))


counted(sb, 0)
ready = sb.create_snapshot(name="ready")
copies = [Sandbox.create(name, timeout=60, envs={"ADDED": "yes"}) for name in ("ready", ready.snapshot_id)]
for copy in copies:
    before = counted(copy, 0)
    assert counting.pid in [p.pid for p in copy.commands.list()], copy.commands.list()
    assert counted(copy, before) > before
    assert copy.files.read("kept.txt") == "kept" and copy.commands.run("echo $ADDED").stdout == "yes\n"
    copy.kill()
try:
    Sandbox.create("ready", timeout=60, network={"allow_out": ["one.test"], "deny_out": ["0.0.0.0/0"]})
    raise AssertionError("another network")
except SandboxException as e:
    assert "has the egress of the sandbox" in str(e), e
assert Sandbox.delete_snapshot("ready") is True
sb.kill()
assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False

# A template, built from a directory.
with tempfile.TemporaryDirectory() as context:
    Path(context, "a.txt").write_text("A")
    template = (
        Template(file_context_path=context)
        .from_base_image()
        .set_envs({"GREET": "hi"})
        .copy("a.txt", "/app/b.txt")
        .set_workdir("/home/user")
        .run_cmd("echo $GREET > greeting")
    )
    logs: list[str] = []
    name = f"python-{os.getpid()}"
    Template.build(template, name, on_build_logs=lambda e: logs.append(e.message))
assert any("[builder 4/4] RUN" in line for line in logs), logs
built = Sandbox.create(name, timeout=60)
assert built.commands.run("cat /app/b.txt greeting").stdout == "Ahi\n"
built.kill()
try:
    Template.build(Template().from_template(name).run_cmd("exit 9"), name)
    raise AssertionError("no error")
except BuildException as e:
    assert "exit status 9" in str(e), e
print("all done", flush=True)
# The threads of the SDK's HTTP library (pyqwest 0.12 in Python 3.11) can abort the interpreter while it
# is torn down, after the last check.
os._exit(0)
