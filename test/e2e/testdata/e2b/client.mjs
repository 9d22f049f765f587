// What a user of E2B's JavaScript SDK does, with the SDK as it is. It prints "all done".
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { Sandbox, Template, waitForFile } from 'e2b'

const seconds = n => new Promise(done => setTimeout(done, n * 1000))

const sb = await Sandbox.create({ metadata: { suite: 'e2e', 'k 1': 'v&=2' }, envs: { X: '1' }, timeoutMs: 120_000 })
assert.match(sb.sandboxId, /^[a-z0-9]+$/)
assert.equal(await sb.isRunning(), true)

assert.match(sb.getHost(8000), new RegExp(`^8000-${sb.sandboxId}\\.`))

// Commands.
const hi = await sb.commands.run('echo hi $X; pwd; echo err >&2')
assert.deepEqual([hi.stdout, hi.stderr, hi.exitCode], ['hi 1\n/home/user\n', 'err\n', 0])
await assert.rejects(sb.commands.run('exit 3'), e => e.name === 'CommandExitError' && e.exitCode === 3)
await assert.rejects(sb.commands.run('sleep 60', { timeoutMs: 1000 }), e => e.name === 'TimeoutError')
assert.equal((await sb.commands.run('id -un; sudo id -un; sudo -n true')).stdout, 'user\nroot\n')
const cat = await sb.commands.run('cat', { background: true, stdin: true })
await sb.commands.sendStdin(cat.pid, 'line\n')
assert.equal((await sb.commands.list()).some(p => p.pid === cat.pid), true)
assert.equal(await sb.commands.kill(cat.pid), true)
assert.equal(await sb.commands.kill(99999), false)

// Files.
await sb.files.write('a.txt', 'hello')
assert.equal(await sb.files.read('/home/user/a.txt'), 'hello')
assert.equal((await (await fetch(await sb.downloadUrl('a.txt'))).text()), 'hello')
assert.deepEqual([await sb.files.makeDir('d'), await sb.files.makeDir('d')], [true, false])
await sb.files.rename('a.txt', 'd/b.txt')
assert.deepEqual((await sb.files.list('d')).map(f => f.path), ['/home/user/d/b.txt'])
await sb.files.remove('d')
assert.equal(await sb.files.exists('d'), false)
await assert.rejects(sb.files.read('a.txt'), e => e.name === 'FileNotFoundError')

// A watch of a directory: the change of a file, and the file itself.
await sb.files.makeDir('w')
const changes = []
const watch = await sb.files.watchDir('w', e => changes.push(`${e.type} ${e.name}`), { recursive: true })
const saw = async e => { for (let i = 0; i < 200 && !changes.includes(e); i++) await new Promise(done => setTimeout(done, 50)) }
await sb.commands.run('mkdir -p w/x && echo 1 > w/x/f')
await saw('create x/f')
await sb.commands.run('rm w/x/f')
await saw('remove x/f')
assert.ok(['create x', 'create x/f', 'remove x/f'].every(e => changes.includes(e)), changes.join(', '))
await watch.stop()

// A fork has the processes and the files of its parent.
const sleeps = await sb.commands.run('sleep 300', { background: true })
const [fork] = await sb.fork({ count: 1, timeoutMs: 60_000 })
assert.notEqual(fork.sandboxId, sb.sandboxId)
assert.equal((await fork.commands.list()).some(p => p.pid === sleeps.pid), true)
assert.equal((await fork.commands.run('ls w')).stdout, 'x\n')
await fork.kill()

// So does a sandbox that starts from a snapshot, which has memory if nothing else is asked for.
const ready = await sb.createSnapshot()
const copy = await Sandbox.create(ready.snapshotId, { timeoutMs: 60_000 })
assert.equal((await copy.commands.list()).some(p => p.pid === sleeps.pid), true)
assert.equal((await copy.commands.run('ls w')).stdout, 'x\n')
await copy.kill()
assert.equal(await Sandbox.deleteSnapshot(ready.snapshotId), true)

// A port, by the headers that a client sends.
await sb.commands.run('python3 -m http.server 8000', { background: true })
const page = port => fetch(process.env.E2B_SANDBOX_URL, { headers: { 'E2b-Sandbox-Id': sb.sandboxId, 'E2b-Sandbox-Port': String(port) } })
for (let n = 0; (await page(8000)).status !== 200; n++) {
  assert.ok(n < 50, 'the server does not listen')
  await seconds(0.1)
}
const closed = await page(8001)
assert.deepEqual([closed.status, await closed.json()], [502, { sandboxId: sb.sandboxId, message: 'The sandbox is running but port is not open', port: 8001, code: 502 }])

// The control plane.
const pages = Sandbox.list({ query: { metadata: { 'k 1': 'v&=2' } }, limit: 1 })
assert.deepEqual((await pages.nextItems()).map(s => s.sandboxId), [sb.sandboxId])
const other = await Sandbox.create({ metadata: { suite: 'e2e' }, timeoutMs: 60_000 })
const seen = []
for (const all = Sandbox.list({ query: { metadata: { suite: 'e2e' } }, limit: 1 }); all.hasNext;) seen.push(...await all.nextItems())
assert.deepEqual(seen.map(s => s.sandboxId), [other.sandboxId, sb.sandboxId])
const before = (await sb.getInfo()).endAt
await Sandbox.connect(sb.sandboxId, { timeoutMs: 1000 })
assert.deepEqual((await sb.getInfo()).endAt, before)
await sb.setTimeout(60_000)
assert.ok((await sb.getInfo()).endAt < before)
assert.equal((await sb.getMetrics()).length, 1)
await other.setTimeout(1000)
for (let n = 0; await other.isRunning(); n++) {
  assert.ok(n < 100, 'it outlives its timeout')
  await seconds(0.1)
}
await assert.rejects(Sandbox.connect(other.sandboxId), e => e.name === 'SandboxNotFoundError')

// Pause and resume: a process goes on.
const long = await sb.commands.run('sleep 1000', { background: true })
assert.equal(await sb.pause(), true)
assert.equal(await sb.isRunning(), false)
assert.equal((await Sandbox.getInfo(sb.sandboxId)).state, 'paused')
const again = await Sandbox.connect(sb.sandboxId, { timeoutMs: 60_000 })
assert.equal((await again.commands.list()).some(p => p.pid === long.pid), true)
assert.equal((await again.commands.run('echo $X')).stdout, '1\n')

// Without its memory, the files of a sandbox are kept.
await again.files.write('cold.txt', 'kept')
await again.pause({ keepMemory: false })
assert.equal((await Sandbox.getInfo(sb.sandboxId)).state, 'paused')
await Sandbox.connect(sb.sandboxId, { timeoutMs: 60_000 })
assert.equal(await again.files.read('cold.txt'), 'kept')
assert.equal((await again.commands.list()).length, 0)

// The end, while a command runs.
const cut = again.commands.run('sleep 1000').then(() => null, e => e)
await seconds(0.5)
assert.deepEqual([await again.kill(), await again.kill()], [true, false])
assert.equal((await cut).name, 'TimeoutError')
await assert.rejects(Sandbox.getInfo(sb.sandboxId), e => e.name === 'SandboxNotFoundError')
await assert.rejects(Sandbox.create('no-such-template'), /404.*not found/)

// Templates: built, started, named, and one that fails at the line of its step.
const context = fs.mkdtempSync(path.join(os.tmpdir(), 'template-'))
fs.mkdirSync(path.join(context, 'dir'))
fs.writeFileSync(path.join(context, 'a.txt'), 'A\n')
fs.writeFileSync(path.join(context, 'dir', 'b.txt'), 'B\n')
const name = 'built-' + process.pid
const template = Template({ fileContextPath: context })
  .fromBaseImage()
  .setEnvs({ GREET: 'hi', TWO: '$GREET there', OF: name })
  .copy('a.txt', '/app/')
  .copy('dir', '/app/dir')
  .setWorkdir('/home/user/work')
  .runCmd('echo "$TWO $PWD" > out.txt; cat out.txt')
  .setStartCmd('echo started > /tmp/started; sleep 1000', waitForFile('/tmp/started'))
const logs = []
const info = await Template.build(template, name, { onBuildLogs: e => logs.push(e.message) })
assert.ok(logs.some(l => l.startsWith('[builder 5/5] RUN ')) && logs.includes('hi there /home/user/work'), logs.join('\n'))
assert.deepEqual([await Template.exists(name), await Template.exists(name + '-none')], [true, false])
const built = await Sandbox.create(name, { timeoutMs: 60_000 })
const files = await built.commands.run('cat /app/a.txt /app/dir/b.txt out.txt /tmp/started; pwd; echo $GREET')
assert.equal(files.stdout, 'A\nB\nhi there /home/user/work\nstarted\n/home/user/work\nhi\n')
await built.kill()
const cached = []
await Template.build(template, name, { onBuildLogs: e => cached.push(e.message) })
assert.ok(cached.some(l => l.startsWith('CACHED [builder 5/5] RUN ')), cached.join('\n'))
await assert.rejects(Template.build(Template().fromTemplate(name).runCmd('cat /app/a.txt; exit 7'), name + '-bad'), e => e.name === 'BuildError' && /exit status 7/.test(e.message))
await assert.rejects(Template.build(Template().fromTemplate(name).runCmd('whoami', { user: 'root123' }), name + '-bad'), e => e.message.includes("failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"))
assert.equal(await Template.exists(name + '-bad'), false)
await Template.assignTags(name + ':default', ['v1', 'v2'])
await Template.removeTags(name, ['v1'])
assert.deepEqual((await Template.getTags(name)).map(t => t.tag).sort(), ['default', 'v2'])
const tagged = await Sandbox.create(name + ':v2', { timeoutMs: 60_000 })
await tagged.kill()
await assert.rejects(Sandbox.create(name + ':v1'), /404.*tag 'v1' does not exist/)
assert.equal((await Template.getBuildStatus(info)).status, 'ready')
console.log('all done')
