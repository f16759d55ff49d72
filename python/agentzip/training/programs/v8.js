// What the V8 dictionary is made from: a Node process with the objects that agents keep.
//
// Node's own modules, then texts, records, messages, maps, closures and typed arrays with generated
// contents: a few of each, because Node's own memory is what sandboxes have in common.
// It reads no file but Node's own, says `ready`, and waits to be ended.
'use strict';

const modules = ['assert', 'buffer', 'child_process', 'crypto', 'events', 'fs', 'http', 'https',
  'net', 'os', 'path', 'querystring', 'readline', 'stream', 'timers', 'tls', 'url', 'util', 'vm',
  'worker_threads', 'zlib'].map((name) => require(name));

const words = [
  'the of and to in a is that for it as was with be by on not he this are or his from at which',
  'but have an had they you were their one all we can her has there been if more when will would',
  'who so no out up said what its about than into them only other time new some could these two',
  'may first then do any like my now over such our even most made after also did many off before',
  'must well back through years where much your way down should because long each just state',
  'people those too how little good world make very year still see own work day get',
].join(' ').split(' ');

// Math.random would do, but this is the same every time.
let state = 20;
function below(limit) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 4294967296) * limit);
}

function text(count) {
  const parts = [];
  for (let i = 0; i < count; i++) parts.push(words[below(words.length)]);
  return parts.join(' ');
}

function message(number) {
  return {
    id: 'msg_' + below(4294967296).toString(16) + below(4294967296).toString(16),
    role: ['user', 'assistant', 'tool'][number % 3],
    content: [{ type: 'text', text: text(5 + below(115)) }],
    usage: { input_tokens: below(9000), output_tokens: below(900) },
    createdAt: new Date(1767225600000 + number * 7000),
    stopReason: number % 5 ? null : 'end_turn',
  };
}

function record(number) {
  return {
    id: number,
    name: text(2),
    amount: below(100000) / 100,
    tags: [text(1), text(1), text(1)],
    active: number % 3 !== 0,
    score: below(1000000) / 7,
    nested: { left: number - 1, right: number + 1, label: text(1) },
  };
}

function page(number) {
  let items = '';
  for (let i = 0; i < 20; i++) {
    items += `<li class="item"><a href="/items/${number}/${i}">${text(6)}</a></li>`;
  }
  return `<!DOCTYPE html><html><head><title>${text(4)}</title></head>` +
    `<body><div id="main"><h1>${text(3)}</h1><ul>${items}</ul></div></body></html>`;
}

function program(number) {
  return `return function step${number}(value, limit = ${number}) {\n` +
    '  const result = {};\n' +
    '  for (const [index, item] of Object.entries(value)) {\n' +
    `    if (item > limit && index % ${(number % 7) + 2} === 0) result[item] = index;\n` +
    '  }\n  return result;\n};';
}

class Step {
  constructor(number) {
    this.number = number;
    this.tool = text(1);
    this.arguments = { path: `/data/${number}`, depth: below(9) };
    this.output = text(40);
    this.later = () => this.number + number;
  }
}

function list(count, make) {
  const made = [];
  for (let i = 0; i < count; i++) made.push(make(i));
  return made;
}

const records = list(1000, record);
const numbers = new Float64Array(2000);
for (let i = 0; i < numbers.length; i++) numbers[i] = below(1000000) / 3;
const kept = {
  modules,
  records,
  numbers,
  messages: list(266, message),
  texts: records.slice(0, 300).map((item) => JSON.stringify(item)),
  parsed: records.slice(300, 600).map((item) => JSON.parse(JSON.stringify(item))),
  steps: list(266, (number) => new Step(number)),
  functions: list(50, (number) => new Function(program(number))()),
  pages: list(20, page),
  byName: new Map(records.map((item) => [item.name + item.id, item])),
  seen: new Set(list(666, (number) => `item ${number}`)),
  buffers: list(20, () => Buffer.from(text(60))),
  wide: list(66, () => text(12) + ' \u2713 \u20ac \u4f60\u597d'),
  promises: list(133, (number) => Promise.resolve(number).then((value) => value + 1)),
};
kept.called = kept.functions.map((step) => step([1, 5, 9, 2000]));
// Objects that have lived through a collection lie as an agent's do.
for (let round = 0; round < 4; round++) list(20000, (number) => ({ number, round }));

process.stdout.write('ready\n');
setInterval(() => kept.records.length, 60000);
