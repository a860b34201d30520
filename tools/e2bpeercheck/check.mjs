// What an ordinary user of the official SDK does, step by step. Each step throws when the peer behaves otherwise than
// E2B; the last line counts them.
import assert from 'node:assert/strict'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { CommandExitError, NotFoundError, Sandbox, SandboxNotFoundError, TimeoutError } from 'e2b'

let steps = 0
async function step(name, f) {
  const from = Date.now()
  await f()
  steps++
  console.log(`ok ${steps} - ${name} (${Date.now() - from} ms)`)
}

const mine = { purpose: 'peer check', 'odd key/': 'ä & b=c' }
let sandbox

await step('create', async () => {
  sandbox = await Sandbox.create('base', { timeoutMs: 60_000, metadata: mine, envs: { FROM_CREATE: 'yes' } })
  assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/)
  assert.equal(await sandbox.isRunning(), true)
})

await step('a key that is wrong', async () => {
  await assert.rejects(Sandbox.create('base', { apiKey: 'e2b_00' }), /401|Unauthorized|API key/i)
})

await step('a template that does not exist', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), /404|not found/i)
})

await step('a time beyond the plan', async () => {
  await assert.rejects(Sandbox.create('base', { timeoutMs: 1000 * 3600 * 1000 }), /400|hours/i)
})

await step('command: output, environment, user, directory', async () => {
  const r = await sandbox.commands.run('echo "out $A $FROM_CREATE"; echo err >&2; id -un 2>/dev/null || id -u; pwd', { envs: { A: 'a b' } })
  assert.equal(r.exitCode, 0)
  assert.match(r.stdout, /^out a b yes\n/)
  assert.equal(r.stderr, 'err\n')
  const tmp = await sandbox.commands.run('pwd', { cwd: '/tmp' })
  assert.equal(tmp.stdout, '/tmp\n')
})

await step('command: as root', async () => {
  const r = await sandbox.commands.run('id -u', { user: 'root' })
  if (process.getuid() === 0) assert.equal(r.stdout, '0\n')
})

await step('command: an exit status', async () => {
  await assert.rejects(sandbox.commands.run('echo before; exit 7'), (e) => {
    assert(e instanceof CommandExitError)
    assert.equal(e.exitCode, 7)
    assert.equal(e.stdout, 'before\n')
    return true
  })
})

await step('command: a directory that does not exist', async () => {
  await assert.rejects(sandbox.commands.run('pwd', { cwd: '/no/such/place' }), /does not exist|invalid_argument/)
})

await step('command: output while it runs, 1 MiB of it', async () => {
  let n = 0
  const r = await sandbox.commands.run('head -c 1048576 /dev/zero | tr "\\0" x', { onStdout: (s) => { n += s.length } })
  assert.equal(n, 1048576)
  assert.equal(r.stdout.length, 1048576)
})

await step('command: stdin', async () => {
  const c = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  await sandbox.commands.sendStdin(c.pid, 'line one\n')
  await sandbox.commands.sendStdin(c.pid, 'ünïcode\n')
  await c.closeStdin()
  const r = await c.wait()
  assert.equal(r.stdout, 'line one\nünïcode\nend\n')
})

await step('command: timeout ends it', async () => {
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 700 }), (e) => e instanceof TimeoutError)
})

await step('command: background, list, connect, kill', async () => {
  const c = await sandbox.commands.run('echo up; exec sleep 60', { background: true, timeoutMs: 0 })
  const list = await sandbox.commands.list()
  assert(list.some((p) => p.pid === c.pid))
  const again = await sandbox.commands.connect(c.pid)
  assert.equal(await sandbox.commands.kill(c.pid), true)
  await assert.rejects(again.wait(), (e) => e instanceof CommandExitError)
  assert.equal(await sandbox.commands.kill(999999), false)
})

await step('files: write, read, bytes, list, exists, rename, remove', async () => {
  const { files } = sandbox
  await files.write('/home/user/dir/a.txt', 'hällo')
  assert.equal(await files.read('dir/a.txt'), 'hällo')
  const bytes = new Uint8Array(300000).map((_, i) => i % 251)
  await files.write('/tmp/b.bin', bytes.buffer)
  assert.deepEqual(await files.read('/tmp/b.bin', { format: 'bytes' }), bytes)
  assert.deepEqual((await files.list('/home/user/dir')).map((e) => e.name), ['a.txt'])
  assert.equal(await files.exists('dir/a.txt'), true)
  assert.equal(await files.exists('dir/no'), false)
  assert.equal(await files.makeDir('dir/new'), true)
  assert.equal(await files.makeDir('dir/new'), false)
  await files.rename('dir/a.txt', 'dir/new/c.txt')
  const info = await files.getInfo('dir/new/c.txt')
  assert.equal(info.type, 'file')
  assert.equal(info.size, 6)
  await files.remove('dir')
  await assert.rejects(files.read('dir/new/c.txt'), (e) => e instanceof NotFoundError)
})

await step('files: several at once, and what a command sees of them', async () => {
  await sandbox.files.write([{ path: 'm/one', data: '1' }, { path: 'm/two', data: '2' }])
  const r = await sandbox.commands.run('cat m/one m/two')
  assert.equal(r.stdout, '12')
})

await step('files: a signed URL', async () => {
  const url = new URL(await sandbox.downloadUrl('/home/user/m/one', { useSignatureExpiration: 60_000 }))
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  assert.equal(await (await fetch(url, { headers })).text(), '1')
  url.searchParams.set('signature', 'v1_wrong')
  assert.equal((await fetch(url, { headers })).status, 401)
})

await step('info, list with a filter, pages', async () => {
  const info = await sandbox.getInfo()
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, mine)
  const others = await Promise.all([1, 2].map(() => Sandbox.create('base', { metadata: { purpose: 'other' } })))
  const found = await Sandbox.list({ query: { metadata: mine } }).nextItems()
  assert.deepEqual(found.map((s) => s.sandboxId), [sandbox.sandboxId])
  const pages = Sandbox.list({ limit: 2 })
  let n = 0
  while (pages.hasNext) n += (await pages.nextItems()).length
  assert.equal(n, 3)
  for (const o of others) assert.equal(await o.kill(), true)
})

await step('the time is renewed', async () => {
  await sandbox.setTimeout(120_000)
  const left = (await sandbox.getInfo()).endAt.getTime() - Date.now()
  assert(left > 100_000 && left < 130_000, `${left} ms left`)
})

await step('connect from elsewhere', async () => {
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo $FROM_CREATE')).stdout, 'yes\n')
})

await step('pause and resume keep files and processes', async () => {
  const c = await sandbox.commands.run('exec sleep 300', { background: true, timeoutMs: 0 })
  c.wait().catch(() => {}) // its stream ends with the pause
  await sandbox.pause()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal((await Sandbox.list({ query: { state: ['paused'] } }).nextItems()).length, 1)
  assert.equal(await sandbox.isRunning(), false)
  sandbox = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
  assert.equal((await sandbox.getInfo()).state, 'running')
  assert.equal(await sandbox.files.read('m/two'), '2')
  assert((await sandbox.commands.list()).some((p) => p.pid === c.pid))
})

await step('the network is replaced while it runs', async () => {
  await sandbox.updateNetwork({ allowOut: ['198.51.100.7', 'example.org'], denyOut: ['0.0.0.0/0'] })
  await assert.rejects(sandbox.updateNetwork({ allowOut: ['example.org'] }), /0\.0\.0\.0\/0/)
  await assert.rejects(sandbox.updateNetwork({ denyOut: ['example.org'] }), /denied/)
})

await step('traffic tokens', async () => {
  const closed = await Sandbox.create('base', { network: { allowPublicTraffic: false } })
  assert(closed.trafficAccessToken)
  await closed.kill()
})

await step('metrics', async () => {
  const [m] = await sandbox.getMetrics()
  assert(m.memUsed > 0 && m.cpuCount === 2, JSON.stringify(m))
})

await step('code interpreter: state, output, results, errors, environment, contexts', async () => {
  const i = await Interpreter.create({ timeoutMs: 60_000, envs: { OF_SANDBOX: 'box' } })
  let seen = ''
  let r = await i.runCode('import os, sys\nx = 41\nprint("out")\nprint("err", file=sys.stderr)\nos.environ["OF_SANDBOX"], os.environ["OF_RUN"]', {
    envs: { OF_RUN: 'run' },
    onStdout: (m) => { seen += m.line },
  })
  assert.equal(r.error, undefined)
  assert.equal(seen, 'out\n')
  assert.equal(r.logs.stderr.join(''), 'err\n')
  assert.match(r.text, /box.*run/)
  r = await i.runCode('x + 1')
  assert.equal(r.text, '42')
  assert.equal(r.executionCount, 2)
  r = await i.runCode('raise ValueError("no")')
  assert.equal(r.error.name, 'ValueError')
  assert.equal(r.error.value, 'no')
  assert.match(r.error.traceback, /ValueError/)
  r = await i.runCode('import os; os._exit(1)')
  assert.equal(r.error.name, 'ContextRestarting')
  r = await i.runCode('print("x" in globals())')
  assert.equal(r.logs.stdout.join(''), 'False\n')
  const context = await i.createCodeContext({ cwd: '/tmp' })
  r = await i.runCode('import os; os.getcwd()', { context })
  assert.match(r.text, /\/tmp/)
  r = await i.runCode('y=1; echo $((y + 1))', { language: 'bash' })
  assert.equal(r.logs.stdout.join(''), '2\n')
  await assert.rejects(i.runCode('1', { language: 'cobol' }), /500/)
  await assert.rejects(i.runCode('1', { context: { id: 'no-such', language: 'python', cwd: '/' } }), /not found/i)
  await assert.rejects(i.runCode('import time; time.sleep(60)', { timeoutMs: 500 }), TimeoutError)
  r = await i.runCode('print("free")')
  assert.equal(r.logs.stdout.join(''), 'free\n')
  assert.equal(await i.kill(), true)
})

await step('kill', async () => {
  assert.equal(await sandbox.kill(), true)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), (e) => e instanceof SandboxNotFoundError || e instanceof NotFoundError)
  await assert.rejects(sandbox.commands.run('true'))
})

console.log(`every step passed: ${steps}`)
process.exit(0) // connections that are kept alive hold nobody up
