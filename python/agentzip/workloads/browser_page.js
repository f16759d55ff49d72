/*
 * The script of a page of the browser workload; `material` stands before it.
 *
 * Builds what pages build: objects, an index, more elements, a drawing.
 */
'use strict';

const items = material.documents.flatMap((text, number) =>
  text.split('\n').filter((line) => line.trim()).map((line, at) => {
    const row = material.rows[(number * 131 + at) % material.rows.length];
    return {
      id: `${row[0]}-${at}`,
      owner: row[1],
      amount: Number(row[2]) * (at % 30 + 1),
      words: line.trim().split(/\s+/),
      position: { number, at },
    };
  }));
const index = new Map();
for (const text of material.documents) {
  for (const [word] of text.matchAll(/[A-Za-z_]{4,}/g)) index.set(word, (index.get(word) || 0) + 1);
}
const numbers = Float64Array.from(items, (item) => item.amount / 3);
for (const text of material.documents.slice(0, 12)) {
  const block = document.createElement('pre');
  block.textContent = text.slice(0, 8000);
  document.body.append(block);
}
const canvas = document.createElement('canvas');
canvas.width = 640;
canvas.height = 360;
const pen = canvas.getContext('2d');
items.slice(0, 640).forEach((item, x) => {
  pen.fillStyle = `hsl(${(material.seed + item.words.length * 31) % 360} 60% 50%)`;
  pen.fillRect(x, 360 - item.amount % 360, 1, item.amount % 360);
});
document.body.prepend(canvas);

/** A number over a text, the same in every engine. */
function fold(sum, text) {
  for (let at = 0; at < text.length; at++) sum = (sum * 31 + text.charCodeAt(at)) % 1000000007;
  return sum;
}

/** One tool call; made twice it takes its changes back. */
function step(number) {
  let changed = 0;
  for (let at = number % 40; at < items.length; at += 40) {
    items[at].words.reverse();
    items[at].amount = -items[at].amount;
    changed += 1;
  }
  for (const cell of document.querySelectorAll('td:nth-child(4)')) {
    cell.textContent = [...cell.textContent].reverse().join('');
  }
  return changed;
}

/** Over everything the page holds. */
function digest() {
  let sum = material.seed % 1000000007;
  for (const item of items) sum = fold(sum, item.id + item.owner + item.amount + item.words);
  for (const text of material.documents) sum = fold(sum, text);
  for (const [word, count] of index) sum = fold(sum, word + count);
  for (const number of numbers) sum = (sum + Math.floor(number * 100)) % 1000000007;
  return fold(sum, document.body.textContent);
}
