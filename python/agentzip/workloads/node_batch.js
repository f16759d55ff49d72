/*
 * Workload D: a Node agent that works through batches of documents, turn by turn.
 *
 *   node node_batch.js FOLDER
 *
 * turns.py describes the lines, node_agent.js is what it holds.
 */
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const zlib = require('node:zlib');

const agent = require('./node_agent.js');

/** Documents and customers of one turn: some tenths of a second. */
const BATCH = 24;
const CUSTOMERS = 200;

const history = [];
const customers = [...agent.byCustomer.keys()];
const batches = path.join(agent.folder, 'batches');
fs.mkdirSync(batches, { recursive: true });

/** Numbers from 0 to 1 that follow from a seed (mulberry32). */
function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * The notes, what documents there are, an eighth of them, all prices.
 *
 * It reads much and computes little: what it takes is what memory takes to come home.
 */
function recall() {
  const hash = crypto.createHash('sha256');
  for (const note of history) hash.update(JSON.stringify(note));
  agent.documents.forEach((found, number) => {
    hash.update(found.name).update(String(found.text.length));
    if (number % 8 === 0) hash.update(found.text);
  });
  let sum = 0;
  for (const orders of agent.byCustomer.values()) for (const row of orders) sum += row.price;
  hash.update(String(sum));
  return hash.update(Buffer.from(agent.prices.buffer)).digest('hex');
}

/** One document through words, compression and a file; what of it did not check. */
function convert(found, number, wrong) {
  const words = new Map();
  for (const [word] of found.text.matchAll(/[A-Za-z_]{3,}/g)) {
    words.set(word, (words.get(word) || 0) + 1);
  }
  for (const [word, count] of words) if (found.words.get(word) !== count) wrong.add('words');
  const packed = zlib.gzipSync(found.text);
  if (zlib.gunzipSync(packed).toString() !== found.text) wrong.add('compression');
  const file = path.join(batches, `${number}.txt`);
  fs.writeFileSync(file, found.text);
  if (fs.readFileSync(file, 'utf8') !== found.text) wrong.add('file');
  return { name: found.name, words: words.size, bytes: packed.length };
}

/** The tool call: a batch of documents, some customers' orders, a note of it. */
function work(number, choice) {
  const random = randomFrom(choice);
  const wrong = new Set();
  const converted = [];
  for (let at = 0; at < BATCH; at++) {
    const found = agent.documents[Math.floor(random() * agent.documents.length)];
    converted.push(convert(found, at, wrong));
  }
  let changed = 0;
  for (let at = 0; at < CUSTOMERS; at++) {
    const orders = agent.byCustomer.get(customers[Math.floor(random() * customers.length)]);
    const text = JSON.stringify(orders);
    if (JSON.stringify(JSON.parse(text)) !== text) wrong.add('orders');
    for (const row of orders) {
      row.tags = [`turn ${number}`, ...row.tags.slice(0, 3)];
      changed += 1;
    }
  }
  history.push({ number, converted, report: JSON.stringify(converted, null, 1) });
  const words = converted.reduce((sum, one) => sum + one.words, 0);
  return { words, changed, wrong: [...wrong] };
}

/** Everything of the agent, and what the turns added. */
function digest() {
  const hash = crypto.createHash('sha256').update(agent.digest());
  return hash.update(JSON.stringify(history)).digest('hex');
}

agent.serve((word, rest) => {
  if (word === 'turn') {
    const [number, choice] = rest.map(Number);
    return [() => ({ recalled: recall() }), () => ({ answer: work(number, choice) })];
  }
  if (word === 'digest') return [() => ({ digest: digest() })];
  return agent.answers(word, rest);
});
