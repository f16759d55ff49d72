/*
 * A Node agent between two calls: documents, word counts, row objects, reports, compressed blobs.
 *
 *   node node_agent.js FOLDER
 *
 * It answers the lines that serve.py describes; a step made twice takes its changes back.
 */
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const zlib = require('node:zlib');

/** One value a line. */
function readLines(file) {
  return fs.readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
}

/** Documents as an agent keeps them: text, lines, how often each word occurs. */
function loadDocuments(folder) {
  return readLines(path.join(folder, 'documents.jsonl')).map(({ name, text }, number) => {
    const words = new Map();
    for (const [word] of text.matchAll(/[A-Za-z_]{3,}/g)) {
      words.set(word, (words.get(word) || 0) + 1);
    }
    const lines = text.split('\n').map((line, at) => ({ at, line, indent: line.search(/\S/) }));
    return {
      name,
      text,
      words,
      lines: number % 5 ? [] : lines,
      blob: number % 2 ? null : zlib.gzipSync(text),
      seen: false,
    };
  });
}

/** Orders as objects, with numbers where there are numbers. */
function loadRows(folder) {
  return readLines(path.join(folder, 'rows.jsonl')).map((row) => ({
    ...row,
    price: Number(row.price || 0),
    quantity: Number(row.quantity),
    at: new Date(row.ordered_at),
    tags: row.note.split(' ').slice(0, 4),
  }));
}

const folder = process.argv[2];
const documents = loadDocuments(folder);
const rows = loadRows(folder);
const byCustomer = new Map();
for (const row of rows) {
  if (!byCustomer.has(row.customer_id)) byCustomer.set(row.customer_id, []);
  byCustomer.get(row.customer_id).push(row);
}
const report = JSON.stringify(rows.slice(0, rows.length / 4), null, 1);
const prices = Float64Array.from(rows, (row) => row.price * row.quantity);
const markdown = documents.slice(0, 60).map((found) =>
  found.text.split('\n\n').map((part) => `<p>${part.trim()}</p>`).join('\n'));

/** A search and a look at one customer in fifty; notes, numbers and texts of some change. */
function step(number) {
  const found = documents[number % documents.length];
  const [wanted] = [...found.words.keys()].slice(number % found.words.size);
  let hits = 0;
  for (const one of documents) hits += one.words.get(wanted) || 0;
  let changed = 0;
  for (const [customer, orders] of byCustomer) {
    if (Number(customer) % 50 !== number % 50) continue;
    for (const row of orders) {
      // Each change is its own inverse.
      row.quantity = -row.quantity;
      row.tags.reverse();
      row.channel = [...row.channel].reverse().join('');
      changed += 1;
    }
  }
  for (let at = number % 7; at < prices.length; at += 7) prices[at] = -prices[at];
  found.seen = !found.seen;
  found.lines.reverse();
  return { wanted, hits, changed };
}

/** Over everything that is held. */
function digest() {
  const hash = crypto.createHash('sha256');
  for (const found of documents) {
    hash.update(found.name).update(found.text).update(String(found.seen));
    for (const [word, count] of found.words) hash.update(`${word}=${count};`);
    for (const line of found.lines) hash.update(`${line.at}:${line.line}:${line.indent}`);
    if (found.blob) hash.update(found.blob);
  }
  for (const [customer, orders] of byCustomer) hash.update(customer + JSON.stringify(orders));
  hash.update(report).update(Buffer.from(prices.buffer));
  for (const text of markdown) hash.update(text);
  return hash.digest('hex');
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n');
}

/** The answers to one line; node_batch.js knows one more. */
function answers(word, [number]) {
  if (word === 'step') return [() => ({ answer: step(Number(number)) })];
  if (word === 'digest') return [() => ({ digest: digest() })];
  return [() => ({ error: `no such command: ${word}` })];
}

/** Answer until stdin ends. */
function serve(answersTo) {
  const input = readline.createInterface({ input: process.stdin });
  input.on('line', (line) => {
    const [word, ...rest] = line.trim().split(' ');
    const started = process.hrtime.bigint();
    for (const part of answersTo(word, rest)) {
      const said = part();
      say({ ...said, seconds: Number(process.hrtime.bigint() - started) / 1e9 });
    }
  });
  input.on('close', () => process.exit(0));
  say({ ready: true });
}

module.exports = { answers, byCustomer, digest, documents, folder, prices, rows, serve };
if (require.main === module) serve(answers);
