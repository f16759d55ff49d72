/*
 * Node's core parts, asserted: workers, children, streams, shared memory, timers, WebAssembly.
 *
 * Each test runs several times over, so that page outs find it at work; one line says how it ended
 * (`passed: NAME` or `failed: NAME` and why).  Nothing here assumes how long anything takes.
 */
'use strict';
const assert = require('assert');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const net = require('net');
const os = require('os');
const path = require('path');
const vm = require('vm');
const zlib = require('zlib');
const { AsyncLocalStorage } = require('async_hooks');
const { execFile, fork, spawn } = require('child_process');
const { EventEmitter, once } = require('events');
const { PassThrough, Readable, Transform, Writable } = require('stream');
const { pipeline } = require('stream/promises');
const { promisify } = require('util');
const timers = require('timers/promises');
const workers = require('worker_threads');

const ROUNDS = 6;
const MIB = 2 ** 20;

function bytes(length, seed) {
  // xorshift32: the same bytes for the same seed.
  const made = Buffer.alloc(length);
  let state = seed || 1;
  for (let at = 0; at + 4 <= length; at += 4) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    made.writeInt32LE(state, at);
  }
  return made;
}

const digest = (data) => crypto.createHash('sha256').update(data).digest('hex');

// What the other side of a worker or of a fork does with a message; both sides compute it.
function answerTo(message) {
  return { id: message.id, sum: message.values.reduce((a, b) => a + b, 0), text: message.text };
}

if (!workers.isMainThread) {
  const { shared, rounds } = workers.workerData;
  if (shared) {
    const words = new Int32Array(shared);
    for (let n = 0; n < rounds; n++) Atomics.add(words, 1, 1);
    Atomics.add(words, 0, 1);
    Atomics.notify(words, 0);
    // Sleeps in a futex whose page may be away until the main thread opens the gate.
    while (Atomics.load(words, 2) === 0) Atomics.wait(words, 2, 0, 1000);
    workers.parentPort.postMessage('through');
  } else {
    workers.parentPort.on('message', (message) => {
      if (message.buffer) {
        const view = new Uint8Array(message.buffer);
        for (let at = 0; at < view.length; at++) view[at] ^= 0xff;
        workers.parentPort.postMessage({ buffer: message.buffer }, [message.buffer]);
      } else {
        workers.parentPort.postMessage(answerTo(message));
      }
    });
  }
} else if (process.argv[2] === 'child') {
  process.on('message', (message) => process.send(answerTo(message)));
  process.on('disconnect', () => process.exit(7));
}

const tests = {
  async 'worker threads answer messages'() {
    const crew = [1, 2, 3].map(() => new workers.Worker(__filename, { workerData: {} }));
    for (let id = 0; id < 200; id++) {
      const message = { id, values: Array.from({ length: 500 }, (_, n) => n * id), text: `t${id}` };
      const worker = crew[id % crew.length];
      worker.postMessage(message);
      assert.deepStrictEqual((await once(worker, 'message'))[0], answerTo(message));
    }
    const codes = await Promise.all(crew.map((worker) => worker.terminate()));
    assert.deepStrictEqual(codes, [1, 1, 1]);
  },

  async 'buffers are transferred to a worker and back'() {
    const worker = new workers.Worker(__filename, { workerData: {} });
    for (let n = 0; n < 10; n++) {
      const original = bytes(MIB, n + 1);
      const buffer = new Uint8Array(original).buffer;
      worker.postMessage({ buffer }, [buffer]);
      assert.strictEqual(buffer.byteLength, 0);
      const [back] = await once(worker, 'message');
      const expected = Buffer.from(original.map((byte) => byte ^ 0xff));
      assert.ok(expected.equals(Buffer.from(back.buffer)));
    }
    await worker.terminate();
  },

  async 'workers share memory and wait on it'() {
    const shared = new SharedArrayBuffer(64 * 1024);
    const words = new Int32Array(shared);
    const rounds = 200000;
    const crew = [1, 2, 3, 4].map(
      () => new workers.Worker(__filename, { workerData: { shared, rounds } }));
    const ended = crew.map((worker) => once(worker, 'message'));
    for (let seen = 0; seen < crew.length; seen = Atomics.load(words, 0)) {
      const wait = Atomics.waitAsync ? Atomics.waitAsync(words, 0, seen, 500) : null;
      if (wait && wait.async) await wait.value;
      else await timers.setTimeout(5);
    }
    assert.strictEqual(words[1], crew.length * rounds);
    await timers.setTimeout(150);
    Atomics.store(words, 2, 1);
    Atomics.notify(words, 2);
    assert.deepStrictEqual((await Promise.all(ended)).flat(), Array(4).fill('through'));
    await Promise.all(crew.map((worker) => worker.terminate()));
  },

  async 'a message channel connects two ports'() {
    const { port1, port2 } = new workers.MessageChannel();
    port2.on('message', (value) => port2.postMessage({ ...value, seen: true }));
    for (let n = 0; n < 300; n++) {
      const value = { n, map: new Map([[n, new Set([n, n + 1])]]), date: new Date(n) };
      port1.postMessage(value);
      assert.deepStrictEqual((await once(port1, 'message'))[0], { ...value, seen: true });
    }
    port1.close();
    await once(port2, 'close');
  },

  async 'a forked child answers and leaves'() {
    const child = fork(__filename, ['child']);
    for (let id = 0; id < 50; id++) {
      const message = { id, values: [id, id + 1, id + 2], text: 'x'.repeat(id * 50) };
      child.send(message);
      assert.deepStrictEqual((await once(child, 'message'))[0], answerTo(message));
    }
    child.disconnect();
    assert.strictEqual((await once(child, 'exit'))[0], 7);
  },

  async 'children run in parallel and keep their output apart'() {
    const run = promisify(execFile);
    const script = 'process.stdout.write(String(Number(process.argv[1]) ** 2))';
    const outputs = await Promise.all(
      [11, 12, 13, 14].map((n) => run(process.execPath, ['-e', script, n])));
    assert.deepStrictEqual(outputs.map((output) => output.stdout), ['121', '144', '169', '196']);
    await assert.rejects(run(process.execPath, ['-e', 'process.exit(9)']), { code: 9 });
  },

  async 'a child echoes megabytes through pipes'() {
    const child = spawn('cat');
    const data = bytes(4 * MIB, 9);
    const parts = [];
    child.stdout.on('data', (part) => parts.push(part));
    child.stdin.end(data);
    assert.deepStrictEqual(await once(child, 'close'), [0, null]);
    assert.strictEqual(digest(Buffer.concat(parts)), digest(data));
    const sleeper = spawn('sleep', ['600']);
    sleeper.kill('SIGTERM');
    assert.deepStrictEqual(await once(sleeper, 'close'), [null, 'SIGTERM']);
  },

  async 'compressed data come back'() {
    const data = Buffer.concat([bytes(MIB, 3), Buffer.from('words '.repeat(100000))]);
    for (const [pack, unpack] of [
      ['gzip', 'gunzip'], ['deflate', 'inflate'], ['deflateRaw', 'inflateRaw'],
      ['brotliCompress', 'brotliDecompress']]) {
      const options = pack.startsWith('brotli')
        ? { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 4 } } : {};
      const packed = await promisify(zlib[pack])(data, options);
      assert.ok(packed.length < data.length);
      assert.ok(data.equals(await promisify(zlib[unpack])(packed)));
      if (pack !== 'deflateRaw') {
        packed[packed.length >> 1] ^= 1;
        packed.fill(0, 0, 8);
        await assert.rejects(promisify(zlib[unpack])(packed));
      }
    }
    assert.strictEqual(zlib.crc32 ? zlib.crc32('hello') : 0x3610a686, 0x3610a686);
  },

  async 'a pipeline keeps order and respects back pressure'() {
    let made = 0;
    const source = new Readable({
      highWaterMark: 4096,
      read() { this.push(made < 2000 ? bytes(1024, ++made) : null); },
    });
    const total = crypto.createHash('sha256');
    const slow = new Writable({
      highWaterMark: 2048,
      write(chunk, _encoding, done) { total.update(chunk); setImmediate(done); },
    });
    const expected = crypto.createHash('sha256');
    for (let n = 1; n <= 2000; n++) expected.update(bytes(1024, n));
    await pipeline(source, zlib.createGzip(), new PassThrough(), zlib.createGunzip(), slow);
    assert.strictEqual(total.digest('hex'), expected.digest('hex'));
  },

  async 'a failing transform ends its pipeline'() {
    const failing = new Transform({
      transform(_chunk, _encoding, done) { done(new Error('no')); },
    });
    await assert.rejects(pipeline(Readable.from(['a', 'b']), failing, new PassThrough()), /no/);
    assert.ok(failing.destroyed);
    const words = [];
    for await (const word of Readable.from(['x', 'y', 'z'])) words.push(word);
    assert.deepStrictEqual(words, ['x', 'y', 'z']);
  },

  async 'buffers hold what was written'() {
    for (let n = 1; n <= 40; n++) {
      const whole = bytes(64 * 1024, n);
      const part = whole.subarray(100, 200);
      part.fill(n);
      assert.ok(whole.subarray(100, 200).every((byte) => byte === n));
      for (const encoding of ['hex', 'base64', 'latin1', 'base64url'])
        assert.ok(whole.equals(Buffer.from(whole.toString(encoding), encoding)));
      whole.writeDoubleBE(n / 7, 8);
      whole.writeBigUInt64LE(2n ** 63n + BigInt(n), 16);
      assert.strictEqual(whole.readDoubleBE(8), n / 7);
      assert.strictEqual(whole.readBigUInt64LE(16), 2n ** 63n + BigInt(n));
      assert.strictEqual(whole.indexOf(whole.subarray(5000, 5064)), 5000);
      assert.ok(Buffer.from(whole).swap32().swap32().equals(whole));
      assert.throws(() => whole.readInt8(whole.length), RangeError);
    }
  },

  async 'timers fire in order and can be stopped'() {
    const fired = [];
    const stopped = setTimeout(() => fired.push('never'), 1);
    clearTimeout(stopped);
    setImmediate(() => fired.push('immediate'));
    process.nextTick(() => fired.push('tick'));
    Promise.resolve().then(() => fired.push('promise'));
    setTimeout(() => fired.push('later'), 60);
    await timers.setTimeout(120);
    await timers.setTimeout(0);
    assert.deepStrictEqual(fired, ['promise', 'tick', 'immediate', 'later']);
    let ticks = 0;
    for await (const value of timers.setInterval(3, 'v')) {
      assert.strictEqual(value, 'v');
      if (++ticks === 30) break;
    }
    const started = process.hrtime.bigint();
    await timers.setTimeout(20);
    assert.ok(process.hrtime.bigint() - started > 18_000_000n);
    const controller = new AbortController();
    const waiting = timers.setTimeout(600000, null, { signal: controller.signal });
    controller.abort();
    await assert.rejects(waiting, { name: 'AbortError' });
  },

  async 'WebAssembly computes and grows'() {
    // add(a, b); put(a, b) stores b at address a of its own memory, "m".
    const module = await WebAssembly.compile(new Uint8Array([
      0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
      1, 12, 2, 0x60, 2, 0x7f, 0x7f, 1, 0x7f, 0x60, 2, 0x7f, 0x7f, 0,
      3, 3, 2, 0, 1,
      5, 3, 1, 0, 1,
      7, 17, 3, 3, 0x61, 0x64, 0x64, 0, 0, 3, 0x70, 0x75, 0x74, 0, 1, 1, 0x6d, 2, 0,
      10, 19, 2, 7, 0, 0x20, 0, 0x20, 1, 0x6a, 0x0b, 9, 0, 0x20, 0, 0x20, 1, 0x36, 2, 0, 0x0b,
    ]));
    const { add, put, m } = new WebAssembly.Instance(module).exports;
    for (let n = 0; n < 16384; n++) put(4 * n, add(n, 2 ** 30));
    new Int32Array(m.buffer).forEach((word, n) => assert.strictEqual(word, n + 2 ** 30));
    assert.throws(() => put(65536, 1), WebAssembly.RuntimeError);
    const memory = new WebAssembly.Memory({ initial: 1, maximum: 200 });
    for (let n = 0; n < 60; n++) {
      const view = Buffer.from(memory.buffer);
      bytes(65536, n + 1).copy(view, view.length - 65536);
      memory.grow(1);
      assert.strictEqual(view.byteLength, 0);
    }
    const grown = Buffer.from(memory.buffer);
    for (let n = 0; n < 60; n++)
      assert.ok(bytes(65536, n + 1).equals(grown.subarray(n * 65536, (n + 1) * 65536)));
  },

  async 'files are written, read and watched for their size'() {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'node-core-'));
    const name = path.join(folder, 'data');
    const data = bytes(2 * MIB, 17);
    await fs.promises.writeFile(name, data);
    assert.strictEqual(digest(await fs.promises.readFile(name)), digest(data));
    await pipeline(fs.createReadStream(name), fs.createWriteStream(name + '2'));
    assert.ok(data.equals(fs.readFileSync(name + '2')));
    const handle = await fs.promises.open(name, 'r+');
    await handle.write(Buffer.from('middle'), 0, 6, MIB);
    const { buffer } = await handle.read(Buffer.alloc(6), 0, 6, MIB);
    assert.strictEqual(buffer.toString(), 'middle');
    await handle.close();
    await fs.promises.rm(folder, { recursive: true });
    await assert.rejects(fs.promises.stat(name), { code: 'ENOENT' });
  },

  async 'sockets and HTTP carry every byte'() {
    const echo = net.createServer((socket) => socket.pipe(socket)).listen(0, '127.0.0.1');
    await once(echo, 'listening');
    const data = bytes(3 * MIB, 23);
    const socket = net.connect(echo.address().port, '127.0.0.1');
    const parts = [];
    socket.on('data', (part) => parts.push(part));
    socket.end(data);
    await once(socket, 'close');
    assert.ok(data.equals(Buffer.concat(parts)));
    echo.close();
    const server = http.createServer(async (request, response) => {
      const body = [];
      for await (const part of request) body.push(part);
      response.setHeader('x-length', Buffer.concat(body).length);
      response.end(Buffer.concat(body));
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const url = `http://127.0.0.1:${server.address().port}/`;
    const answers = await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(async (n) => {
      const response = await fetch(url, { method: 'POST', body: bytes(200000, n) });
      assert.strictEqual(response.headers.get('x-length'), '200000');
      return Buffer.from(await response.arrayBuffer());
    }));
    answers.forEach((answer, n) => assert.ok(answer.equals(bytes(200000, n + 1))));
    server.closeAllConnections();
    server.close();
  },

  async 'ciphers, keys and hashes agree'() {
    const key = bytes(32, 5), nonce = bytes(12, 6), data = bytes(MIB, 7);
    const cipher = crypto.createCipheriv('aes-256-gcm', key, nonce);
    const sealed = Buffer.concat([cipher.update(data), cipher.final()]);
    const open = crypto.createDecipheriv('aes-256-gcm', key, nonce).setAuthTag(cipher.getAuthTag());
    assert.ok(data.equals(Buffer.concat([open.update(sealed), open.final()])));
    const pair = await promisify(crypto.generateKeyPair)('ec', { namedCurve: 'P-256' });
    const signature = crypto.sign('sha256', data, pair.privateKey);
    assert.ok(crypto.verify('sha256', data, pair.publicKey, signature));
    const derived = await promisify(crypto.pbkdf2)('word', 'salt', 20000, 32, 'sha256');
    assert.strictEqual(derived.toString('hex'),
      crypto.pbkdf2Sync('word', 'salt', 20000, 32, 'sha256').toString('hex'));
  },

  async 'collections survive garbage collection'() {
    const kept = new Map(), weak = new WeakMap();
    for (let n = 0; n < 40000; n++) {
      const holder = { n, text: `value ${n}` };
      weak.set(holder, { twice: 2 * n });
      if (n % 2) kept.set(`key${n}`, holder);
      if (n % 10000 === 0) global.gc();
    }
    global.gc();
    for (const [name, holder] of kept) {
      assert.strictEqual(name, `key${holder.n}`);
      assert.strictEqual(weak.get(holder).twice, 2 * holder.n);
    }
    assert.strictEqual(kept.size, 20000);
    assert.deepStrictEqual(structuredClone(kept), kept);
  },

  async 'contexts, storage and events keep apart'() {
    const sandbox = vm.createContext({ value: 20, out: [] });
    vm.runInContext('for (let n = 0; n < 1000; n++) out.push(value + n)', sandbox);
    assert.strictEqual(sandbox.out.length, 1000);
    assert.strictEqual(sandbox.out[999], 1019);
    const storage = new AsyncLocalStorage();
    await Promise.all(Array.from({ length: 100 }, (_, n) => storage.run(n, async () => {
      for (let turn = 0; turn < 5; turn++) {
        await timers.setImmediate();
        assert.strictEqual(storage.getStore(), n);
      }
    })));
    const emitter = new EventEmitter();
    let heard = 0;
    emitter.on('ping', (n) => { heard += n; });
    for (let n = 0; n < 1000; n++) emitter.emit('ping', n);
    assert.strictEqual(heard, 499500);
  },
};

async function main() {
  let failed = 0;
  for (let round = 1; round <= ROUNDS; round++) {
    for (const [name, test] of Object.entries(tests)) {
      try {
        await test();
        console.log(`passed: ${name}, round ${round}`);
      } catch (error) {
        failed++;
        console.log(`failed: ${name}, round ${round}`);
        console.error(error);
      }
    }
  }
  process.exit(failed ? 1 : 0);
}

if (workers.isMainThread && process.argv[2] !== 'child') main();
