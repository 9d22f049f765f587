"""Measures the Python client against the daemon that CLOCHE_HOST names, and writes what came of it.

    CLOCHE_HOST=unix:///… python3 bench/measure.py      # writes bench/results.json

Go and Python take turns, so that a busy minute hits both. Needs go, for the client that it is compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cloche

HERE = Path(__file__).resolve().parent


def summary(samples: list[float]) -> dict[str, object]:
    ms = [round(s * 1000, 1) for s in samples]
    return {"median_ms": round(statistics.median(ms), 1), "min_ms": min(ms), "samples_ms": ms}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interpreter(code: str) -> float:
    return timed(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def imports(n: int) -> dict[str, object]:
    """How long whole interpreters take that import nothing, this package, and httpx with it."""
    programs = {"nothing": "pass", "cloche": "import cloche", "cloche_and_httpx": "import cloche, httpx"}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(n):
        for name, code in programs.items():
            samples[name].append(interpreter(code))
    out: dict[str, object] = {name: summary(s) for name, s in samples.items()}
    ours, bare = statistics.median(samples["cloche"]), statistics.median(samples["nothing"])
    return {**out, "cloche_over_nothing_ms": round((ours - bare) * 1000, 1)}


def run_python(n: int) -> dict[str, object]:
    """run_python("print(1)") by both clients, in turns."""
    go: list[float] = []
    python: list[float] = []
    with tempfile.TemporaryDirectory() as d, cloche.SandboxClient() as client:
        binary = f"{d}/goclient"
        subprocess.run(["go", "build", "-o", binary, "./bench/goclient"], check=True, cwd=HERE.parents[2])
        with subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None and other.stdout is not None
            for i in range(n + 2):
                other.stdin.write("\n")
                other.stdin.flush()
                theirs = float(other.stdout.readline())
                ours = timed(lambda: client.run_python("print(1)", image="host").stdout)
                if i >= 2:  # connections and caches are there
                    go.append(theirs)
                    python.append(ours)
            other.stdin.close()
    ratio = statistics.median(python) / statistics.median(go)
    return {"go": summary(go), "python": summary(python), "ratio": round(ratio, 3)}


async def many(count: int) -> dict[str, object]:
    """So many sandboxes at once from one process: all live together, and each runs a program."""
    async with cloche.AsyncSandboxClient() as client:
        labels = {"bench": str(os.getpid())}
        began = time.perf_counter()
        boxes = await asyncio.gather(*(client.create(image="host", labels=labels) for _ in range(count)))
        created = time.perf_counter()
        live = await client.list(labels=labels, states=["running"])
        results = await asyncio.gather(*(b.exec("echo", [b.id]) for b in boxes))
        ran = time.perf_counter()
        await asyncio.gather(*(b.remove() for b in boxes))
        ended = time.perf_counter()
        right = sum(r.stdout == f"{b.id}\n" for b, r in zip(boxes, results, strict=True))
        return {
            "sandboxes": count,
            "engine": boxes[0].info["engine"],
            "live_together": len(live),
            "right_answers": right,
            "left": len(await client.list(labels=labels)),
            "create_s": round(created - began, 1),
            "exec_s": round(ran - created, 1),
            "remove_s": round(ended - ran, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=30, help="rounds of each comparison")
    parser.add_argument("--sandboxes", type=int, default=200, help="how many at once")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    results = {
        "machine": f"{os.cpu_count()} processors, Python {platform.python_version()}",
        "load_before": round(load, 1),
        "import": imports(args.n),
        "run_python": run_python(args.n),
        "many": asyncio.run(many(args.sandboxes)),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
