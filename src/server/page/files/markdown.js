// Markdown, LaTeX and tables of HTML as models write them, read into a tree of plain values; markdown_view.js shows the tree.
// Knows nothing of a browser. Anything that it does not recognise stays text.
//
// A block is one of {kind: 'paragraph', children}, {kind: 'heading', level, children}, {kind: 'rule'},
// {kind: 'quote', blocks}, {kind: 'list', ordered, start, items: [blocks]}, {kind: 'code', language, text},
// {kind: 'math', text}, {kind: 'table', caption: children or null, head: [[cell]], rows: [[cell]], rest: the source of rows that
// found no room}, {kind: 'thought', blocks, open}: open until the thought has ended.
// A cell: {children}, and where they are not the usual ones header: true, align, colspan, rowspan. Children: as of inline.js.
import {inline} from './inline.js';
import {HtmlTables, kMaxColumns} from './html_table.js';

const kMaxDepth = 12;         // of blocks in blocks: the rest is text
const kMaxElements = 10000;   // of all tables of an answer: the rest is text
const kMaxHead = 20000;       // characters of a table's first line

const kFence = /^( *)(`{3,}|~{3,}) *([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const kRule = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const kQuote = /^ {0,3}> ?(.*)$/;
const kItem = /^( *)([-*+]|(\d{1,9})[.)])( +|$)(.*)$/;
const kColumns = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const kThought = /^\s*<think(?:ing)?>/, kThoughtEnd = /<\/think(?:ing)?>/;

// The elements that an answer's tables may still have.
class Room {
  constructor() {
    this.left = kMaxElements;
  }

  // Whether there is room for the cells of a row, which then have it.
  spend(cells) {
    const elements = (children) => children.reduce((sum, child) => sum + 1 + elements(child.children ?? []), 0);
    const n = 1 + cells.reduce((sum, cell) => sum + 1 + elements(cell.children), 0);
    if (n > this.left || cells.length > kMaxColumns) return false;
    this.left -= n;
    return true;
  }
}

const indentOf = (line) => line.length - line.trimStart().length;

// Cells of a table's line; a bar in code or after a backslash is none of its borders.
function cells(line) {
  const out = [''];
  for (const [piece] of line.trim().replace(/^\|/, '').matchAll(/\\\||`[^`]*`|\||[^\\`|]+|./gs)) {
    if (piece === '|') out.push('');
    else out[out.length - 1] += piece === '\\|' ? '|' : piece;
  }
  if (out.at(-1).trim() === '' && out.length > 1) out.pop();
  return out.map((cell) => cell.trim());
}

const isTable = (lines, i) => i + 1 < lines.length && lines[i].length < kMaxHead && kColumns.test(lines[i + 1]) && lines[i].includes('|') &&
  lines[i + 1].includes('-') && cells(lines[i]).length === cells(lines[i + 1]).length;

const opensMath = (line) => /^ *(\$\$|\\\[)/.exec(line)?.[1];

// Whether a paragraph ends before this line.
function interrupts(lines, i) {
  const line = lines[i], item = kItem.exec(line);
  return !line.trim() || kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) ||
    (item && item[5] && (item[3] === undefined || Number(item[3]) <= 1)) || isTable(lines, i) || HtmlTables.mayBegin(line) || opensMath(line) || kThought.test(line);
}

function code(lines, i) {
  const [, indent, fence, info] = kFence.exec(lines[i]);
  const isEnd = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], '') === '';
  let end = i + 1;
  while (end < lines.length && !isEnd(lines[end])) ++end;
  const text = lines.slice(i + 1, end).map((line) => line.slice(Math.min(indent.length, indentOf(line)))).join('\n');
  return [{kind: 'code', language: info.trim().split(/\s+/)[0], text}, end + 1];
}

// A formula in lines of its own; null: it has no end, or something comes after it.
function math(lines, i) {
  const opener = opensMath(lines[i]), closer = opener === '$$' ? '$$' : '\\]';
  let text = lines[i].trim().slice(2), end = i;
  while (!text.includes(closer) && end + 1 < lines.length && lines[end + 1].trim()) text += '\n' + lines[++end];
  const at = text.indexOf(closer);
  if (at < 0 || text.slice(at + 2).trim() || !text.slice(0, at).trim()) return null;
  return [{kind: 'math', text: text.slice(0, at).trim()}, end + 1];
}

function quote(lines, i, depth, answer) {
  const inner = [];
  for (let match; i < lines.length && (match = kQuote.exec(lines[i])); ++i) inner.push(match[1]);
  return [{kind: 'quote', blocks: blocks(inner, depth + 1, answer)}, i];
}

function table(lines, i, {room}) {
  const begin = i, columns = cells(lines[i + 1]).map((c) => (c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : c.startsWith(':') ? 'left' : ''));
  const row = (line, more) => {
    const texts = cells(line);
    return columns.map((align, column) => ({children: inline(texts[column] ?? ''), ...more, ...(align ? {align} : {})}));
  };
  const isRow = (line) => line.trim() && line.includes('|');
  const head = row(lines[i], {header: true}), rows = [], hasRoom = room.spend(head);
  let rest = hasRoom ? -1 : begin;
  for (i += 2; i < lines.length && isRow(lines[i]); ++i) {
    if (rest >= 0) continue;
    const next = row(lines[i], {});
    if (room.spend(next)) rows.push(next);
    else rest = i;
  }
  return [{kind: 'table', caption: null, head: hasRoom ? [head] : [], rows, rest: rest < 0 ? '' : lines.slice(rest, i).join('\n')}, i];
}

// Items with all that is indented below them. Two spaces are enough, though models should write three after "1.".
function list(lines, i, depth, answer) {
  const first = kItem.exec(lines[i]), ordered = first[3] !== undefined, items = [];
  let inner = null, width = 0, left = 0;
  const isMine = (item) => item && (item[3] !== undefined) === ordered && item[1].length < (inner ? left + 2 : 99);
  for (; i < lines.length; ++i) {
    const line = lines[i], item = kRule.test(line) ? null : kItem.exec(line);
    if (isMine(item)) {
      if (!inner) left = item[1].length;
      width = item[1].length + item[2].length + (item[4].length > 4 ? 1 : Math.max(1, item[4].length));
      items.push((inner = [line.slice(Math.min(line.length, width))]));
      continue;
    }
    const blank = !line.trim(), before = inner.at(-1).trim();
    const belongs = blank || indentOf(line) >= left + 2 || (before !== '' && !interrupts(lines, i));
    if (!belongs) break;
    inner.push(line.slice(Math.min(indentOf(line), width)));
  }
  return [{kind: 'list', ordered, start: ordered ? Number(first[3]) : 1, items: items.map((item) => blocks(item, depth + 1, answer))}, i];
}

function thought(lines, i, answer) {
  const rest = lines.slice(i).join('\n').replace(kThought, '');
  const end = kThoughtEnd.exec(rest);
  const inner = end ? rest.slice(0, end.index) : rest;
  const after = end ? rest.slice(end.index + end[0].length).split('\n') : [];
  return [{kind: 'thought', blocks: blocks(inner.split('\n'), 1, answer), open: !end}, after];
}

// A paragraph, and the table of HTML that begins in its last line, or null: [paragraph, table, i].
function paragraph(lines, i, html, answer) {
  const texts = [];
  do {
    const column = HtmlTables.columnWithin(lines[i]), before = lines[i].slice(0, column);
    const found = column > 0 ? html().read(i, column, answer) : null;
    if (found) return [{kind: 'paragraph', children: inline([...texts, before.trim()].join('\n'))}, ...found];
    texts.push(lines[i++].trim());
  } while (i < lines.length && !interrupts(lines, i));
  return [{kind: 'paragraph', children: inline(texts.join('\n'))}, null, i];
}

// `answer`: of the whole answer, {room, growing: whether more is to come}.
function blocks(lines, depth, answer) {
  const out = [];
  let tables = null;
  const html = () => (tables ??= new HtmlTables(lines));
  for (let i = 0; i < lines.length;) {
    const line = lines[i], heading = kHeading.exec(line);
    let block = null, after = null;
    if (!line.trim()) {
      ++i;
      continue;
    }
    const formula = opensMath(line) ? math(lines, i) : null;
    const found = HtmlTables.mayBegin(line) ? html().read(i, indentOf(line), answer) : null;
    if (kFence.test(line)) [block, i] = code(lines, i);
    else if (depth === 0 && kThought.test(line)) [block, lines, i, tables] = [...thought(lines, i, answer), 0, null];
    else if (found) [block, i] = found;
    else if (formula) [block, i] = formula;
    else if (heading) [block, i] = [{kind: 'heading', level: heading[1].length, children: inline(heading[2] ?? '')}, i + 1];
    else if (kRule.test(line)) [block, i] = [{kind: 'rule'}, i + 1];
    else if (depth < kMaxDepth && kQuote.test(line)) [block, i] = quote(lines, i, depth, answer);
    else if (depth < kMaxDepth && kItem.test(line)) [block, i] = list(lines, i, depth, answer);
    else if (isTable(lines, i)) [block, i] = table(lines, i, answer);
    else [block, after, i] = paragraph(lines, i, html, answer);
    out.push(block);
    if (after) out.push(after);
  }
  return out;
}

const kTableBegins = /<(?:t(?:a(?:b(?:l(?:e[^<>]*)?)?)?)?)?$/i;

// The blocks of an answer; `growing`: more is to come, so that the beginning of a table is not shown as text. A thought whose
// beginning stands in the prompt is recognised by its end.
export function markdown(text, growing = false) {
  if (growing) text = text.replace(kTableBegins, '');
  const end = kThoughtEnd.exec(text);
  if (end && !/<think(?:ing)?>/.test(text.slice(0, end.index))) text = `<think>${text}`;
  return blocks(text.replace(/\r\n?/g, '\n').split('\n').map((line) => line.replace(/^[ \t]+/, (space) => space.replaceAll('\t', '    '))), 0, {room: new Room(), growing});
}
