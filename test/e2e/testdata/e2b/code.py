"""What a user of E2B's code interpreter for Python does. It prints "all done"."""

import asyncio
import os

from e2b_code_interpreter import AsyncSandbox, Sandbox

sandbox = Sandbox.create(timeout=120)
sandbox.run_code("x = 6")
run = sandbox.run_code("print('printed')\nx * 7")
assert (run.text, run.logs.stdout, run.error) == ("42", ["printed\n"], None), run
assert sandbox.run_code("'text'").text == "text"
failed = sandbox.run_code("1/0")
assert failed.error.name == "ZeroDivisionError" and "division by zero" in failed.error.traceback, failed
plots = sandbox.run_code(
    "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='a')\nplt.xlabel('t (s)')\nplt.show()"
)
chart = plots.results[0].chart
assert plots.results[0].png.startswith("iVBOR") and chart.type == "line", plots
assert chart.elements[0].label == "a" and chart.elements[0].points == [(1, 3), (2, 4)], chart.to_dict()
table = sandbox.run_code("import pandas\npandas.DataFrame({'n': [1, 2]})").results[0]
assert table.data == {"n": [1, 2]} and "<table" in table.html and table.is_main_result, table
seen = []
sandbox.run_code("import sys\nfor i in range(3): print(i)", on_stdout=lambda m: seen.append(m.line))
assert "".join(seen) == "0\n1\n2\n", seen
assert sandbox.run_code("import os; os.environ['V']", envs={"V": "one"}).text == "one"
context = sandbox.create_code_context(cwd="/tmp")
assert context.language == "python" and context.cwd == "/tmp"
assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
assert sandbox.run_code("x", context=context).error.name == "NameError"
assert len(sandbox.list_code_contexts()) == 2
sandbox.restart_code_context(context)
sandbox.remove_code_context(context)
for wrong in ("context", "timeout", "language"):
    try:
        if wrong == "context":
            sandbox.run_code("1", context=context)
        elif wrong == "timeout":
            sandbox.run_code("import time; time.sleep(60)", timeout=1)
        else:
            sandbox.run_code("1", language="cobol")
        raise AssertionError(f"no error: {wrong}")
    except AssertionError:
        raise
    except Exception as e:
        print(wrong, type(e).__name__, e)
# The run whose caller left does not block the next.
assert sandbox.run_code("x").text == "6"
assert sandbox.commands.run("echo beside").stdout == "beside\n"
sandbox.kill()


async def later():
    async with await AsyncSandbox.create(timeout=120) as s:
        run = await s.run_code("1 + 1")
        assert run.text == "2", run
        await s.kill()


asyncio.run(later())
print("all done", flush=True)
# See client.py.
os._exit(0)
