// Markdown and LaTeX as models write them, read into a tree of plain values; markdown_view.js shows the tree. Knows
// nothing of a browser. What it does not recognise stays text, as does everything between < and >.
//
// A block is one of {kind: 'paragraph', children}, {kind: 'heading', level, children}, {kind: 'rule'},
// {kind: 'quote', blocks}, {kind: 'list', ordered, start, items: [blocks]}, {kind: 'code', language, text},
// {kind: 'math', text}, {kind: 'table', align, head: [children], rows: [[children]]},
// {kind: 'thought', blocks, open}: open until the thought has ended.
// Children are strings and {kind: 'code', text}, {kind: 'math', text, display}, {kind: 'break'},
// {kind: 'strong' | 'em' | 'strike', children}, {kind: 'link', href, children}.

const kMaxDepth = 12;      // of blocks in blocks and of emphasis in emphasis: the rest is text
const kMaxLabel = 1000;    // characters of a link's text

// ---- inside a paragraph ----------------------------------------------------------------------------------------------

// Only pages of the web: no script, no data, no file.
export function webAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : null;
  } catch {
    return null;
  }
}

const kMark = /\\[!-/:-@[-`{-~]|`+|\*+|_+|~~|!?\[|\$\$?|https?:\/\/[^\s<>]+|<br\s*\/?>/g;
const kTarget = /\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+"[^"]*")?\s*\)/y;
const kAfterUrl = /[.,;:!?)'"*_~\]]+$/;
const kKinds = {'*': 'em', '**': 'strong', '_': 'em', '__': 'strong', '~~': 'strike'};
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

// Reads one paragraph. A closing mark that has not been found is not sought again, so time grows with the text's length.
class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.missing = new Set();
  }

  read() {
    const out = [];
    let plain = '', at = 0;
    const mark = new RegExp(kMark);
    for (let match; (match = mark.exec(this.text)); mark.lastIndex = at) {
      const found = this.depth < kMaxDepth ? this.at(match[0], match.index) : null;
      plain += this.text.slice(at, match.index);
      at = found ? found.end : match.index + match[0].length;
      if (!found) plain += match[0];
      else if (typeof found.node === 'string') plain += found.node;
      else {
        if (plain) out.push(plain);
        plain = '';
        out.push(found.node);
      }
    }
    plain += this.text.slice(at);
    if (plain) out.push(plain);
    return out;
  }

  inside = (text) => new Inline(text, this.depth + 1).read();

  // {node, end} of the span that begins with `mark` at `i`; null: it is only text.
  at(mark, i) {
    const c = mark[0];
    if (mark === '\\(') return this.math(i, mark, '\\)', false);
    if (mark === '\\[') return this.math(i, mark, '\\]', true);
    if (c === '\\') return {node: mark[1], end: i + 2};
    if (c === '`') return this.code(i, mark);
    if (mark === '$$') return this.math(i, mark, '$$', true);
    if (c === '$') return this.dollars(i);
    if (c === '[' || c === '!') return this.link(i, mark);
    if (c === 'h') return this.address(i, mark);
    if (c === '<') return {node: {kind: 'break'}, end: i + mark.length};
    return this.emphasis(i, mark);
  }

  // The first place from `from` on where `closer` stands and `fits` holds; -1: nowhere.
  find(closer, from, fits = () => true) {
    if (this.missing.has(closer)) return -1;
    for (let j = this.text.indexOf(closer, from); j >= 0; j = this.text.indexOf(closer, j + 1)) {
      if (fits(j)) return j;
    }
    this.missing.add(closer);
    return -1;
  }

  code(i, ticks) {
    const begin = i + ticks.length;
    const end = this.find(ticks, begin, (j) => this.text[j - 1] !== '`' && this.text[j + ticks.length] !== '`');
    if (end < 0) return null;
    const text = this.text.slice(begin, end);
    return {node: {kind: 'code', text: text.trim() ? text.replace(/^ (.*) $/s, '$1') : text}, end: end + ticks.length};
  }

  math(i, opener, closer, display) {
    const begin = i + opener.length, end = this.find(closer, begin);
    if (end < 0) return null;
    const text = this.text.slice(begin, end).trim();
    return text ? {node: {kind: 'math', text, display}, end: end + closer.length} : null;
  }

  // A price is no formula: "$5 and $10" has a space before its second sign and a digit after it.
  dollars(i) {
    let end = i;
    do end = this.text.indexOf('$', end + 1);
    while (this.text[end - 1] === '\\');
    if (end <= i + 1 || isSpace(this.text[i + 1]) || isSpace(this.text[end - 1]) || /\d/.test(this.text[end + 1] ?? '')) return null;
    return {node: {kind: 'math', text: this.text.slice(i + 1, end), display: false}, end: end + 1};
  }

  emphasis(i, mark) {
    const begin = i + mark.length, low = mark[0] === '_';
    if (isSpace(this.text[begin]) || (low && isWord(this.text[i - 1]))) return null;
    const both = mark.length === 3 && mark !== '~~';
    if (!both && !kKinds[mark]) return null;
    let end = this.find(mark, begin, (j) => j > begin && !isSpace(this.text[j - 1]) && this.text[j - 1] !== mark[0] &&
      (this.text[j + mark.length] !== mark[0] || mark.length === 2) && !(low && isWord(this.text[j + mark.length])));
    if (end < 0) return null;
    if (mark.length === 2 && this.text[end + 2] === mark[0]) ++end;  // **bold *and more***
    const children = this.inside(this.text.slice(begin, end));
    const node = both ? {kind: 'strong', children: [{kind: 'em', children}]} : {kind: kKinds[mark], children};
    return {node, end: end + mark.length};
  }

  // [text](address), and ![text](address): an image of another host is shown as a link.
  link(i, mark) {
    let depth = 0, j = i + mark.length - 1;
    for (const last = Math.min(this.text.length, j + kMaxLabel); j < last; ++j) {
      if (this.text[j] === '\\') ++j;
      else if (this.text[j] === '[') ++depth;
      else if (this.text[j] === ']' && --depth === 0) break;
    }
    if (depth !== 0 || this.text[j] !== ']') return null;
    kTarget.lastIndex = j + 1;
    const target = kTarget.exec(this.text);
    const href = target && webAddress(target[1]);
    if (!href) return null;
    const label = this.text.slice(i + mark.length, j);
    const children = mark === '[' ? this.inside(label) : [`image: ${label || href}`];
    return {node: {kind: 'link', href, children: children.length > 0 ? children : [href]}, end: kTarget.lastIndex};
  }

  address(i, text) {
    const balanced = text.includes('(') && text.endsWith(')');
    const shown = balanced ? text : text.replace(kAfterUrl, '');
    const href = webAddress(shown);
    return href && !isWord(this.text[i - 1]) ? {node: {kind: 'link', href, children: [shown]}, end: i + shown.length} : null;
  }
}

export const inline = (text) => new Inline(text, 0).read();

// ---- paragraphs and other blocks --------------------------------------------------------------------------

const kFence = /^( *)(`{3,}|~{3,}) *([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const kRule = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const kQuote = /^ {0,3}> ?(.*)$/;
const kItem = /^( *)([-*+]|(\d{1,9})[.)])( +|$)(.*)$/;
const kColumns = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const kThought = /^\s*<think(?:ing)?>/, kThoughtEnd = /<\/think(?:ing)?>/;

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

const isTable = (lines, i) => lines[i].includes('|') && i + 1 < lines.length && kColumns.test(lines[i + 1]) &&
  lines[i + 1].includes('-') && cells(lines[i]).length === cells(lines[i + 1]).length;

const opensMath = (line) => /^ *(\$\$|\\\[)/.exec(line)?.[1];

// Whether a paragraph ends before this line.
function interrupts(lines, i) {
  const line = lines[i], item = kItem.exec(line);
  return !line.trim() || kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) ||
    (item && item[5] && (item[3] === undefined || Number(item[3]) <= 1)) || isTable(lines, i) || opensMath(line) || kThought.test(line);
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

function quote(lines, i, depth) {
  const inner = [];
  for (let match; i < lines.length && (match = kQuote.exec(lines[i])); ++i) inner.push(match[1]);
  return [{kind: 'quote', blocks: blocks(inner, depth + 1)}, i];
}

function table(lines, i) {
  const head = cells(lines[i]);
  const align = cells(lines[i + 1]).map((c) => (c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : c.startsWith(':') ? 'left' : ''));
  const rows = [];
  for (i += 2; i < lines.length && lines[i].trim() && lines[i].includes('|'); ++i) {
    const row = cells(lines[i]);
    rows.push(head.map((_, column) => inline(row[column] ?? '')));
  }
  return [{kind: 'table', align, head: head.map((cell) => inline(cell)), rows}, i];
}

// Items with all that is indented below them. Two spaces are enough, though models should write three after "1.".
function list(lines, i, depth) {
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
  return [{kind: 'list', ordered, start: ordered ? Number(first[3]) : 1, items: items.map((item) => blocks(item, depth + 1))}, i];
}

function thought(lines, i) {
  const rest = lines.slice(i).join('\n').replace(kThought, '');
  const end = kThoughtEnd.exec(rest);
  const inner = end ? rest.slice(0, end.index) : rest;
  const after = end ? rest.slice(end.index + end[0].length).split('\n') : [];
  return [{kind: 'thought', blocks: blocks(inner.split('\n'), 1), open: !end}, after];
}

function blocks(lines, depth) {
  const out = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i], heading = kHeading.exec(line);
    let block = null;
    if (!line.trim()) {
      ++i;
      continue;
    }
    const formula = opensMath(line) ? math(lines, i) : null;
    if (kFence.test(line)) [block, i] = code(lines, i);
    else if (depth === 0 && kThought.test(line)) [block, lines, i] = [...thought(lines, i), 0];
    else if (formula) [block, i] = formula;
    else if (heading) [block, i] = [{kind: 'heading', level: heading[1].length, children: inline(heading[2] ?? '')}, i + 1];
    else if (kRule.test(line)) [block, i] = [{kind: 'rule'}, i + 1];
    else if (depth < kMaxDepth && kQuote.test(line)) [block, i] = quote(lines, i, depth);
    else if (depth < kMaxDepth && kItem.test(line)) [block, i] = list(lines, i, depth);
    else if (isTable(lines, i)) [block, i] = table(lines, i);
    else {
      let end = i + 1;
      while (end < lines.length && !interrupts(lines, end)) ++end;
      [block, i] = [{kind: 'paragraph', children: inline(lines.slice(i, end).map((text) => text.trim()).join('\n'))}, end];
    }
    out.push(block);
  }
  return out;
}

// The blocks of an answer. A thought whose beginning stands in the prompt is recognised by its end.
export function markdown(text) {
  const end = kThoughtEnd.exec(text);
  if (end && !/<think(?:ing)?>/.test(text.slice(0, end.index))) text = `<think>${text}`;
  return blocks(text.replace(/\r\n?/g, '\n').split('\n').map((line) => line.replace(/^[ \t]+/, (space) => space.replaceAll('\t', '    '))), 0);
}
