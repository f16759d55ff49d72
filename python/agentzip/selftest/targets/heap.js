/*
 * An ordinary Node program as a target: objects, maps, strings and buffers, with a digest.
 *
 * Commands, one answer line each: verify, work, timers, exit.  As in heap.py the expected digest
 * is kept by the check, outside of the memory that is paged out.
 */
'use strict';
const crypto = require('crypto');
const readline = require('readline');

let state = Number(process.argv[2] || 1);
function dice() {
  // xorshift32: the same data for the same seed.
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return state >>> 0;
}

const records = [];
for (let n = 0; n < 60000; n++) {
  records.push({ id: n, name: 'name' + dice(), score: dice() / 7, tags: ['a' + (n % 17), n] });
}
const index = new Map(records.map((record) => [record.name, record]));
const buffers = [];
for (let n = 0; n < 64; n++) {
  buffers.push(crypto.createHash('sha512').update(String(n)).digest());
  buffers.push(Buffer.alloc(65536, n));
}
const text = records.slice(0, 5000).map((record) => JSON.stringify(record)).join('\n');
let ticks = 0;

function digest() {
  const total = crypto.createHash('sha256');
  for (const record of records) total.update(JSON.stringify(record));
  for (const [name, record] of index) total.update(name + record.id);
  for (const buffer of buffers) total.update(buffer);
  total.update(text);
  return total.digest('hex');
}

function work() {
  for (let n = 0; n < records.length; n += 11) {
    records[n].score += 1;
    records[n].tags = [records[n].tags[0], n + 1];
  }
  buffers.push(Buffer.from('one more ' + buffers.length));
  return digest();
}

// The event loop sits in epoll_wait with a timeout: an EINTR there must not disturb it.
setInterval(() => { ticks += 1; }, 20);

const commands = { verify: digest, work, timers: () => String(ticks) };
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  if (line === 'exit') process.exit(0);
  try {
    process.stdout.write('ok ' + commands[line]() + '\n');
  } catch (error) {
    process.stdout.write('bad ' + error + '\n');
  }
}).on('close', () => process.exit(0));
process.stdout.write('ready ' + process.pid + '\n');
