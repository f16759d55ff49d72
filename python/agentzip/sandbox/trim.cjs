// Trim hook for Node: collects garbage when the host asks, over the socket that the launcher named.
//
// `require(path)` gives `trim()` and `serveTrim(path)`; as `node --require path` it serves by
// itself when $AGENTZIP_TRIM_SOCKET is set.  The protocol is that of trim_socket.py.
'use strict';

const fs = require('fs');
const net = require('net');
const v8 = require('v8');
const vm = require('vm');
const { isMainThread } = require('worker_threads');

const SOCKET_VARIABLE = 'AGENTZIP_TRIM_SOCKET';
const REQUEST = 'trim\n';
const PEER_MS = 2000; // How long one asker may take to say what it wants.

const servers = new Map(); // By path, so that a preload and a call serve one socket once.

function collector() {
  if (typeof global.gc === 'function') return global.gc;
  // The flag takes effect for contexts made afterwards; the program's own global stays as it is.
  v8.setFlagsFromString('--expose-gc');
  const gc = vm.runInNewContext('gc');
  v8.setFlagsFromString('--no-expose-gc');
  return gc;
}

// Collects fully and gives empty pages back; returns whole numbers of bytes.
function trim() {
  const before = process.memoryUsage();
  const gc = collector();
  // Twice: what finalization of the first round frees, the second one collects.
  gc();
  gc();
  const after = process.memoryUsage();
  return {
    collected_bytes: Math.max(0, before.rss - after.rss),
    heap_bytes: Math.max(0, before.heapUsed - after.heapUsed),
    resident_bytes: after.rss,
  };
}

function answer(connection) {
  let asked = '';
  connection.setTimeout(PEER_MS, () => connection.destroy());
  connection.on('error', () => connection.destroy());
  connection.on('data', (block) => {
    asked += block.toString('latin1');
    if (asked.length > REQUEST.length || (asked.includes('\n') && asked !== REQUEST)) {
      connection.destroy();
    } else if (asked === REQUEST) {
      let report;
      try {
        report = trim();
      } catch (error) {
        report = { error: String(error) };
      }
      connection.end(JSON.stringify(report) + '\n');
    }
  });
}

// A socket file that nobody listens on is what an ended process left behind.
function removeStale(path, listen) {
  const probe = net.connect(path);
  probe.on('connect', () => probe.destroy());
  probe.on('error', (error) => {
    if (error.code !== 'ECONNREFUSED') return;
    fs.rmSync(path, { force: true });
    listen();
  });
  probe.unref();
}

// Serves trim requests while the program runs; does not keep it running.
function serveTrim(path = process.env[SOCKET_VARIABLE]) {
  // A preload runs in every worker, too; the heap that counts is the main thread's.
  if (!path || !isMainThread) return null;
  if (servers.has(path)) return servers.get(path);
  const server = net.createServer(answer);
  const listen = () => {
    // libuv binds inside `listen`: the mode must be narrow before the name exists.
    const former = process.umask(0o177);
    try {
      server.listen(path);
    } finally {
      process.umask(former);
    }
    server.unref();
  };
  let retried = false;
  server.on('error', (error) => {
    // A trim socket that cannot be made must not end the program; nobody will be able to ask.
    if (error.code === 'EADDRINUSE' && !retried) {
      retried = true;
      removeStale(path, listen);
    }
  });
  listen();
  servers.set(path, server);
  return server;
}

module.exports = { serveTrim, trim };

// There is no main module yet while `node --require` preloads.
if (require.main === undefined && process.env[SOCKET_VARIABLE]) serveTrim();
