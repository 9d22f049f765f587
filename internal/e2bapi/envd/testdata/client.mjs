// Uses E2B's JavaScript client as a program does, and fails at the first difference.
import assert from 'node:assert/strict'
import { Sandbox, FileType, CommandExitError, TimeoutError, FileNotFoundError, NotFoundError, InvalidArgumentError, AuthenticationError } from 'e2b'

const steps = []
const step = (name, fn) => steps.push([name, fn])
const sbx = await Sandbox.create()
const dir = process.env.TEST_DIR

step('run', async () => {
  const r = await sbx.commands.run('echo hi')
  assert.equal(r.stdout, 'hi\n'); assert.equal(r.exitCode, 0)
})
step('special text', async () => {
  const r = await sbx.commands.run("echo '!@#$%^&*()_+'; echo 'two\nlines'; echo err >&2")
  assert.equal(r.stdout, '!@#$%^&*()_+\ntwo\nlines\n'); assert.equal(r.stderr, 'err\n')
})
step('cwd and env', async () => {
  const r = await sbx.commands.run('pwd; echo $GLOBAL $BOTH $ONE', { envs: { BOTH: 'call', ONE: '1' } })
  assert.equal(r.stdout, `${dir}\nsandbox call 1\n`)
  assert.equal((await sbx.commands.run('echo "<$ONE>"')).stdout, '<>\n')
  assert.equal((await sbx.commands.run('pwd', { cwd: '/' })).stdout, '/\n')
  await assert.rejects(sbx.commands.run('pwd', { cwd: '/nowhere' }), InvalidArgumentError)
})
step('exit code', async () => {
  await assert.rejects(sbx.commands.run('echo out; exit 7'), (e) => {
    assert.ok(e instanceof CommandExitError); assert.equal(e.exitCode, 7); assert.equal(e.stdout, 'out\n')
    return true
  })
  await assert.rejects(sbx.commands.run('no-such-program-x'), (e) => e.exitCode === 127)
})
step('timeout', async () => {
  await assert.rejects(sbx.commands.run('sleep 30', { timeoutMs: 700 }), TimeoutError)
  await new Promise((r) => setTimeout(r, 500))
  assert.deepEqual(await sbx.commands.list(), [])
})
step('background', async () => {
  const h = await sbx.commands.run('while true; do echo tick; sleep 0.1; done', { background: true })
  assert.ok(h.pid > 0)
  const list = await sbx.commands.list()
  assert.equal(list.length, 1); assert.equal(list[0].pid, h.pid); assert.equal(list[0].cmd, '/bin/bash')
  let seen = ''
  const other = await sbx.commands.connect(h.pid, { onStdout: (d) => { seen += d } })
  assert.equal(other.pid, h.pid)
  await new Promise((r) => setTimeout(r, 500))
  assert.match(seen, /tick/)
  assert.equal(await other.kill(), true)
  await assert.rejects(h.wait(), (e) => e instanceof CommandExitError && e.exitCode === -1 && /killed/.test(String(e.error)))
  assert.equal(await sbx.commands.kill(h.pid), false)
  await assert.rejects(sbx.commands.connect(999999), NotFoundError)
})
step('disconnect', async () => {
  const h = await sbx.commands.run('sleep 1; echo later', { background: true })
  await h.disconnect()
  const again = await sbx.commands.connect(h.pid)
  assert.equal((await again.wait()).stdout, 'later\n')
  const after = await sbx.commands.connect(h.pid)
  assert.equal((await after.wait()).exitCode, 0)
})
step('stdin', async () => {
  const h = await sbx.commands.run('cat', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'Hello ')
  await sbx.commands.sendStdin(h.pid, new TextEncoder().encode('Wörld'))
  await sbx.commands.sendStdin(h.pid, '')
  await sbx.commands.closeStdin(h.pid)
  const r = await h.wait()
  assert.equal(r.stdout, 'Hello Wörld')
  await assert.rejects(sbx.commands.sendStdin(h.pid, 'x'))
})
step('pipe held by a child', async () => {
  const h = await sbx.commands.run('sleep 20 & echo $!; wait', { background: true })
  await new Promise((r) => setTimeout(r, 300))
  assert.equal(await h.kill(), true)
  const begin = Date.now()
  await assert.rejects(h.wait(), CommandExitError)
  assert.ok(Date.now() - begin < 5000, 'the end waits for the pipe')
})
step('large output', async () => {
  const r = await sbx.commands.run('head -c 20000000 /dev/zero | tr "\\0" x')
  assert.equal(r.stdout.length, 20000000)
})
step('unknown user', async () => {
  await assert.rejects(sbx.commands.run('true', { user: 'nobody-here' }), AuthenticationError)
})
step('pty', async () => {
  let out = ''
  const h = await sbx.pty.create({ cols: 80, rows: 24, envs: { ABC: '123' }, timeoutMs: 0, onData: (d) => { out += new TextDecoder().decode(d) } })
  await sbx.pty.sendInput(h.pid, new TextEncoder().encode('tput cols; echo $ABC\n'))
  await new Promise((r) => setTimeout(r, 500))
  await sbx.pty.resize(h.pid, { cols: 100, rows: 24 })
  await sbx.pty.sendInput(h.pid, new TextEncoder().encode('tput cols\n'))
  await new Promise((r) => setTimeout(r, 500))
  await sbx.pty.sendInput(h.pid, new TextEncoder().encode('exit\n'))
  const r = await h.wait()
  assert.equal(r.exitCode, 0)
  assert.match(out, /80/); assert.match(out, /123/); assert.match(out, /100/)
  const k = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await sbx.pty.kill(k.pid), true)
  assert.equal(await sbx.pty.kill(k.pid), false)
})
step('files', async () => {
  const w = await sbx.files.write('a/b.txt', 'hello')
  assert.equal(w.path, `${dir}/a/b.txt`); assert.equal(w.name, 'b.txt'); assert.equal(w.type, 'file')
  assert.equal(await sbx.files.read('a/b.txt'), 'hello')
  await sbx.files.write('a/b.txt', 'x')
  assert.equal(await sbx.files.read('a/b.txt'), 'x')
  await sbx.files.write('empty', '')
  assert.equal(await sbx.files.read('empty'), '')
  assert.equal((await sbx.files.read('empty', { format: 'bytes' })).length, 0)
  await assert.rejects(sbx.files.read('nope'), FileNotFoundError)
  await assert.rejects(sbx.files.read('a'), InvalidArgumentError)
  const many = await sbx.files.write([{ path: 'm/1', data: 'one' }, { path: 'm/2', data: new Blob(['two']) }])
  assert.deepEqual(many.map((f) => f.path), [`${dir}/m/1`, `${dir}/m/2`])
  assert.equal(await sbx.files.read('m/2'), 'two')
})
step('gzip and streams', async () => {
  const text = 'abc'.repeat(100000)
  await sbx.files.write('z', text, { gzip: true })
  assert.equal(await sbx.files.read('z'), text)
  assert.equal(await sbx.files.read('z', { gzip: true }), text)
  await sbx.files.write('s', new Blob([text]).stream(), { useOctetStream: true })
  const stream = await sbx.files.read('s', { format: 'stream' })
  let n = 0
  for await (const c of stream) n += c.length
  assert.equal(n, text.length)
})
step('directories', async () => {
  assert.equal(await sbx.files.makeDir('d/e'), true)
  assert.equal(await sbx.files.makeDir('d/e'), false)
  await sbx.files.write('d/e/f', '1')
  await sbx.files.write('d/x', '1')
  assert.deepEqual((await sbx.files.list('d')).map((e) => e.name), ['e', 'x'])
  assert.deepEqual((await sbx.files.list('d', { depth: 2 })).map((e) => e.path), [`${dir}/d/e`, `${dir}/d/e/f`, `${dir}/d/x`])
  await assert.rejects(sbx.files.list('d', { depth: 0 }), InvalidArgumentError)
  await assert.rejects(sbx.files.list('nope'), FileNotFoundError)
  await assert.rejects(sbx.files.list('d/x'), InvalidArgumentError)
  const moved = await sbx.files.rename('d/x', 'd/new/y')
  assert.equal(moved.path, `${dir}/d/new/y`)
  await assert.rejects(sbx.files.rename('nope', 'z2'), FileNotFoundError)
  assert.equal(await sbx.files.exists('d/x'), false)
  assert.equal(await sbx.files.exists('d/new/y'), true)
  await sbx.files.remove('d')
  await sbx.files.remove('d')
  assert.equal(await sbx.files.exists('d'), false)
})
step('info', async () => {
  await sbx.files.write('i.txt', 'hello')
  await sbx.commands.run('ln -s i.txt link; ln -s nowhere broken')
  const i = await sbx.files.getInfo('i.txt')
  assert.equal(i.type, FileType.FILE); assert.equal(i.mode, 0o644); assert.equal(i.permissions, '-rw-r--r--'); assert.equal(i.size, 5)
  assert.equal(i.symlinkTarget, undefined); assert.ok(i.modifiedTime instanceof Date); assert.ok(i.owner)
  const l = await sbx.files.getInfo('link')
  assert.equal(l.symlinkTarget, `${dir}/i.txt`); assert.equal(l.type, FileType.FILE)
  assert.equal((await sbx.files.getInfo('broken')).symlinkTarget, `${dir}/broken`)
  await assert.rejects(sbx.files.getInfo('nope'), FileNotFoundError)
})
step('signed urls', async () => {
  await sbx.files.write('sig.txt', 'signed')
  const get = await fetch(await sbx.downloadUrl('sig.txt', { useSignatureExpiration: 60 }))
  assert.equal(await get.text(), 'signed')
  const gone = await fetch(await sbx.downloadUrl('sig.txt', { useSignatureExpiration: -120 }))
  assert.equal(gone.status, 401)
  assert.deepEqual(await gone.json(), { code: 401, message: 'signature is already expired' })
  const form = new FormData()
  form.append('file', new Blob(['up']), 'up.txt')
  const put = await fetch(await sbx.uploadUrl('up.txt', { useSignatureExpiration: 60 }), { method: 'POST', body: form })
  assert.equal(put.status, 200)
  assert.deepEqual(await put.json(), [{ path: `${dir}/up.txt`, name: 'up.txt', type: 'file' }])
  const bad = await fetch((await sbx.downloadUrl('sig.txt', {})).replace(/signature=[^&]*/, 'signature=v1_x'))
  assert.deepEqual(await bad.json(), { code: 401, message: 'invalid signature' })
})
step('running', async () => assert.equal(await sbx.isRunning(), true))

const only = process.argv[2]
for (const [name, fn] of steps) {
  if (only && name !== only) continue
  const begin = Date.now()
  try {
    await fn()
  } catch (e) {
    console.log('FAILED', name, e)
    process.exitCode = 1
    continue
  }
  console.log('ok', name, Date.now() - begin, 'ms')
}
if (!process.exitCode) console.log('all done')
