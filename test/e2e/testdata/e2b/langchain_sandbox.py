"""What LangChain's deep agents do with their own sandbox of E2B, as it is. It prints "all done"."""

import os

from e2b import Sandbox
from langchain_e2b import E2BSandbox

sb = Sandbox.create(timeout=120)
box = E2BSandbox(sandbox=sb)
ran = box.execute("echo out; echo err >&2; exit 4")
assert ran.exit_code == 4 and "out" in ran.output and "err" in ran.output, ran
[up] = box.upload_files([("/home/user/a.txt", b"one\ntwo\n")])
assert up.error is None, up
[down] = box.download_files(["/home/user/a.txt"])
assert down.content == b"one\ntwo\n", down
[missing] = box.download_files(["/home/user/none.txt"])
assert missing.error, missing
edited = box.edit("/home/user/a.txt", "two", "three")
assert edited.error is None, edited
assert "three" in str(box.read("/home/user/a.txt")), box.read("/home/user/a.txt")
assert "a.txt" in str(box.ls("/home/user")), box.ls("/home/user")
assert "three" in str(box.grep("three", path="/home/user")), box.grep("three", path="/home/user")
assert "a.txt" in str(box.glob("*.txt", path="/home/user")), box.glob("*.txt", path="/home/user")
sb.kill()
print("all done", flush=True)
# See client.py.
os._exit(0)
