"""The script that resolves paths, in each shell that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cloche.openai_agents.paths import SCRIPT

SHELLS = [s for s in ("dash", "bash", "busybox", "ksh", "zsh") if shutil.which(s)]


@pytest.mark.parametrize("shell", SHELLS)
def test_where_a_path_leads(shell: str, tmp_path: Path) -> None:
    found = shutil.which(shell)
    assert found is not None
    path = os.environ["PATH"]
    argv = [found]
    if shell == "busybox":
        (tmp_path / "bin").mkdir()
        subprocess.run([found, "--install", "-s", str(tmp_path / "bin")], check=True, timeout=60)
        path, argv = str(tmp_path / "bin"), [found, "sh"]
    elif shell == "zsh":
        argv += ["--emulate", "sh"]

    root, grant, fixed = (tmp_path / n for n in ("ro[o]t *", "grant", "grant/fixed"))
    for directory in (root / "d", grant, fixed, tmp_path / "ro[o]t *x"):
        directory.mkdir(parents=True)
    (root / "f").write_bytes(b"content\xff")
    (root / "d" / "-n").write_text("dash")
    (fixed / "f").write_text("fixed")
    (tmp_path / "ro[o]t *x" / "f").write_text("neighbour")
    for name, target in {
        "abs": "/etc/passwd",
        "up": "../../../../../../../etc/passwd",
        "near": f"{root}x/f",
        "in": "d",
        "self": "self",
        "to-grant": str(grant),
        "to-fixed": str(fixed),
        "gone": "nowhere",
        "back": "nowhere/../../x",
        "line\nbreak": "f",
    }.items():
        (root / name).symlink_to(target)
    (root / "d" / "out").symlink_to("..")

    def do(op: str, name: str, data: bytes = b"") -> tuple[int, bytes]:
        target = name if name.startswith("/") else f"{root}/{name}"
        rules = [str(root), "0", str(grant), "0", str(fixed), "1"]
        done = subprocess.run(
            [*argv, "-c", SCRIPT, "sh", op, target, "100", "token", *rules],
            input=data,
            capture_output=True,
            env={"PATH": path},
            cwd="/",
            timeout=60,
        )
        return done.returncode, done.stdout

    assert do("read", "f") == (0, b"content\xff") == do("read", "line\nbreak") == do("read", "d/out/f")
    assert do("read", "in/-n") == (0, b"dash")
    assert do("read", "to-fixed/f") == (0, b"fixed")
    for escape in ("abs", "up", "near", "back", f"{root}x/f", "/etc/passwd"):
        for op in ("read", "write", "list", "check", "mkdir-parents"):
            assert do(op, escape)[0] == 111, (op, escape)
    assert do("read", "self")[0] == 112
    assert do("read", "gone")[0] == do("read", "x/y/z")[0] == 66
    assert do("read", "d")[0] == do("write", "d")[0] == 67
    for op in ("write", "mkdir", "remove", "remove-all", "prepare", "check-write"):
        assert do(op, "to-fixed/f")[0] == 114, op
        assert do(op, "to-grant/fixed/f")[0] == 114, op

    assert do("write", "gone", b"made")[0] == 0 and (root / "nowhere").read_bytes() == b"made"
    assert do("write", "a/b/c", b"\0new")[0] == 0 and (root / "a/b/c").read_bytes() == b"\0new"
    (root / "f").chmod(0o751)
    assert do("write", "line\nbreak", b"again")[0] == 0
    assert (root / "f").read_bytes() == b"again" and (root / "f").stat().st_mode & 0o777 == 0o751
    assert (root / "line\nbreak").is_symlink()
    assert do("write", "to-grant/g", b"g")[0] == 0 and (grant / "g").read_bytes() == b"g"
    assert do("mkdir", "m")[0] == 0 and do("mkdir", "m")[0] != 0 and do("mkdir-parents", "m/n/o")[0] == 0
    for link in ("abs", "to-fixed", "self"):
        assert do("remove", link)[0] == 0 and not (root / link).is_symlink()
    assert (fixed / "f").exists()
    assert do("remove", "m")[0] != 0 and do("remove-all", "m")[0] == 0 and not (root / "m").exists()
    status, told = do("list", "d")
    assert status == 0 and told.startswith(b"root:") and b"\0root:" in told
    assert not [p for p in root.rglob("*token*")]
