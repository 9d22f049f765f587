// What a user of E2B's code interpreter for JavaScript does. It prints "all done".
import assert from 'node:assert'
import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
await sandbox.runCode('x = 6')
const run = await sandbox.runCode("print('printed')\nx * 7")
assert.deepStrictEqual([run.text, run.logs.stdout, run.error], ['42', ['printed\n'], undefined])
const failed = await sandbox.runCode('1/0')
assert.strictEqual(failed.error.name, 'ZeroDivisionError')
const plots = await sandbox.runCode("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.show()")
assert.ok(plots.results[0].png.startsWith('iVBOR'))
assert.strictEqual(plots.results[0].chart.type, 'bar')
assert.deepStrictEqual(plots.results[0].chart.elements.map((e) => [e.label, e.value]), [['a', 1], ['b', 2]])
let seen = ''
await sandbox.runCode('for i in range(3): print(i)', { onStdout: (m) => (seen += m.line) })
assert.strictEqual(seen, '0\n1\n2\n')
const context = await sandbox.createCodeContext({ cwd: '/tmp' })
assert.strictEqual((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
assert.strictEqual((await sandbox.listCodeContexts()).length, 2)
await sandbox.restartCodeContext(context)
await sandbox.removeCodeContext(context)
await assert.rejects(sandbox.runCode('1', { context }), /not found/)
await assert.rejects(sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 1000 }))
assert.strictEqual((await sandbox.runCode('x')).text, '6')
await assert.rejects(sandbox.runCode('1', { language: 'cobol' }), /no Jupyter kernel for cobol/)
await sandbox.kill()
console.log('all done')
// The SDK keeps the timer of a request that failed.
process.exit(0)
