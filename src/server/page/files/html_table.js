// Tables that models write in HTML, read into the same plain values as Markdown's (markdown.js). Only the shape of the table
// and a few elements inside a cell are taken: all attributes except spans are dropped, as are comments, scripts and styles; a tag
// that is not HTML's stays text. A table in a cell becomes lines of that cell. A table ends at its end tag, or where text
// stands outside of its cells.
import {inline, kElements, lowerCase, tagAt} from './inline.js';

// A browser lays out every place that spans claim: rows times columns, however few the cells are.
export const kMaxColumns = 200;
const kMaxSpan = 1000;

const kFrames = 'html|body|div|center|figure';  // that models put around a table
const kStart = new RegExp(`(?:<(?:${kFrames})(?:\\s[^<>]{0,500})?>\\s{0,100}){0,4}<table(?=[\\s>/])`, 'iy');
const kFrameEnds = new RegExp(`(?:\\s*</(?:${kFrames})>){0,4}`, 'iy');
const kMayStart = new RegExp(`^\\s*<(?:table|${kFrames})(?=[\\s>/])`, 'i');
const kStartsWithin = /<table(?=[\s>/])/i;

const kStructure = ['table', 'thead', 'tbody', 'tfoot', 'tr', 'td', 'th', 'caption', 'colgroup', 'col'];
const kOutOfSight = ['script', 'style', 'template', 'noscript'];
// Elements in a cell that begin a line, and elements whose tags are dropped.
const kLines = ['p', 'div', 'li', 'ul', 'ol', 'dl', 'dt', 'dd', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'blockquote', 'pre', 'hr', 'section', 'article'];
const kDropped = ['span', 'font', 'center', 'a', 'img', 'small', 'big', 'code', 'tt', 'label', 'input', 'button', 'form', 'iframe', 'object', 'embed', 'svg',
  'html', 'head', 'body', 'meta', 'link', 'figure', 'mark', 'abbr', 'nobr', 'wbr', 'video', 'audio', 'base'];
const kKnown = new Set([...kStructure, ...kOutOfSight, ...kLines, 'br', ...kDropped, ...Object.keys(kElements)]);

// ---- entities --------------------------------------------------------------------------------------------------------

const kEntities = {amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\xa0', ensp: ' ', emsp: ' ', thinsp: ' ', copy: '©', reg: '®', trade: '™', deg: '°',
  plusmn: '±', times: '×', divide: '÷', minus: '−', middot: '·', bull: '•', hellip: '…', ndash: '–', mdash: '—', lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”',
  laquo: '«', raquo: '»', euro: '€', pound: '£', yen: '¥', cent: '¢', sect: '§', para: '¶', micro: 'µ', frac12: '½', frac14: '¼', frac34: '¾', sup1: '¹',
  sup2: '²', sup3: '³', le: '≤', ge: '≥', ne: '≠', asymp: '≈', larr: '←', rarr: '→', infin: '∞', alpha: 'α', beta: 'β', gamma: 'γ', delta: 'δ', mu: 'μ',
  pi: 'π', sigma: 'σ', Omega: 'Ω', szlig: 'ß', auml: 'ä', ouml: 'ö', uuml: 'ü', Auml: 'Ä', Ouml: 'Ö', Uuml: 'Ü', eacute: 'é', egrave: 'è', agrave: 'à',
  ccedil: 'ç', ntilde: 'ñ'};

function character(code) {
  const isOne = code >= 0x20 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return isOne ? String.fromCodePoint(code) : code === 9 || code === 10 || code === 13 ? ' ' : '\ufffd';
}

export const decoded = (text) => text.replace(/&(?:#x([0-9a-f]{1,8})|#(\d{1,8})|([a-z]\w{1,9}));/gi, (all, hex, decimal, name) => {
  if (name) return Object.hasOwn(kEntities, name) ? kEntities[name] : all;
  return character(hex ? parseInt(hex, 16) : Number(decimal));
});

const encoded = (text) => text.replace(/[&<>]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;'})[c]);

// ---- a cell ----------------------------------------------------------------------------------------------------------

// Collects a cell's source, as text for `inline` in which elements are closed in the order they were opened.
class Cell {
  constructor(fields) {
    this.fields = fields;
    this.pieces = [];
    this.open = [];      // names of elements, each once
    this.fresh = true;   // nothing stands in this line
  }

  add(text) {
    this.pieces.push(text);
    this.fresh &&= !text.trim();
  }

  // Begins a line.
  line() {
    if (!this.fresh) this.pieces.push('<br>');
    this.fresh = true;
  }

  element({name, closes}) {
    const at = this.open.indexOf(name);
    if (!closes && at < 0) {
      this.open.push(name);
      this.pieces.push(`<${name}>`);
    }
    if (closes && at >= 0) this.close(at);
  }

  close(from) {
    for (const name of this.open.splice(from).reverse()) this.pieces.push(`</${name}>`);
  }

  value() {
    this.close(0);
    const source = this.pieces.join('').replace(/^(?:\s|<br>)+/, '');
    let end = source.length;
    for (let before = -1; before !== end;) {  // white space and lines at its end
      before = end;
      while (end > 0 && /\s/.test(source[end - 1])) --end;
      if (source.startsWith('<br>', end - 4)) end -= 4;
    }
    return {children: inline(source.slice(0, end), decoded), ...this.fields};
  }
}

// ---- a table ---------------------------------------------------------------------------------------------------------

function spanOf(tag, name, most) {
  const match = new RegExp(`\\s${name}\\s*=\\s*["']?\\s*(\\d{1,9})`, 'i').exec(tag);
  return match ? Math.max(1, Math.min(most, Number(match[1]))) : 1;
}

class TableReader {
  // `source`: HtmlTables; `begin`: the place after "<table".
  constructor(source, begin, room) {
    this.source = source;
    this.text = source.text;
    this.room = room;
    this.table = {kind: 'table', caption: null, head: [], rows: [], rest: ''};
    this.section = 'rows';
    this.row = this.cell = null;
    this.begin = begin;
    this.rowBegin = -1;
    this.columns = 0;  // of the row, with columns that hang down from earlier rows
    this.hanging = [];  // spans of earlier rows that reach this one or later ones: {columns, rows: how many more}
    this.nested = 0;   // tables within the cell
    this.restFrom = -1;  // where the rows that found no room begin; -1: all have
    this.end = -1;       // of the table, once it is known
  }

  // {table, end, whole: whether its end has been found}; the table is null where there is no cell.
  read() {
    let at = tagAt(this.text, this.begin - '<table'.length)?.end ?? this.text.length;
    while (this.end < 0 && at < this.text.length) at = this.step(at);
    const whole = this.end >= 0, end = whole ? this.end : this.text.length;
    this.closeRow();
    if (this.restFrom >= 0) this.table.rest = this.text.slice(this.restFrom, end).replace(/<\/table\s*>$/i, '').trim();
    const isOne = this.table.head.length + this.table.rows.length > 0 || this.restFrom >= 0;
    return {table: isOne ? this.table : null, end, whole};
  }

  // Reads a piece of text or a tag; where the next one begins.
  step(at) {
    const {text} = this, mark = text.indexOf('<', at);
    if (mark !== at) return this.words(at, mark < 0 ? text.length : mark);
    const comment = text.startsWith('<!--', at) ? this.source.find('-->', at) : -1;
    if (comment >= 0) return comment + 3;
    const data = text.startsWith('<![CDATA[', at) ? this.source.find(']]>', at) : -1;
    if (data >= 0) return this.words(at, data + 3, encoded(text.slice(at + 9, data)));
    const tag = tagAt(text, at);
    if (tag && kKnown.has(tag.name)) return this.tag(tag, at);
    if (!tag && this.isCutTag(at)) return text.length;
    return this.words(at, at + 1);
  }

  // Whether the text ends within a tag.
  isCutTag(at) {
    const rest = this.text.slice(at, at + 500);
    if (at + rest.length < this.text.length || rest.includes('>')) return false;
    const [, name, more] = /^<\/?([a-z0-9]*)(.*)$/is.exec(rest), lower = name.toLowerCase();
    return more ? kKnown.has(lower) : [...kKnown].some((known) => known.startsWith(lower));
  }

  words(at, end, shown = this.text.slice(at, end)) {
    if (this.cell) {
      if (this.restFrom < 0) this.cell.add(shown);
    } else if (shown.trim()) {
      this.end = at;
    }
    return end;
  }

  tag(tag, at) {
    const {name} = tag;
    if (kOutOfSight.includes(name)) {
      const end = tag.closes ? tag.end : this.source.find(`</${name}`, tag.end);
      return end < 0 ? tag.end : (tagAt(this.text, end)?.end ?? tag.end);
    }
    if (kStructure.includes(name)) {
      if (this.nested > 0 || (name === 'table' && this.cell && !tag.closes)) this.inner(tag);
      else this.structure(tag, at);
    } else if (this.cell && this.restFrom < 0) {
      if (name === 'br') this.cell.add('<br>');
      else if (kLines.includes(name)) this.cell.line();
      else if (Object.hasOwn(kElements, name)) this.cell.element(tag);
    }
    return tag.end;
  }

  // Of a table in a cell: its rows are lines.
  inner({name, closes}) {
    if (name === 'table') this.nested += closes ? -1 : 1;
    if (this.restFrom >= 0) return;
    if (name === 'tr' || name === 'table') this.cell.line();
    if (!closes && (name === 'td' || name === 'th') && !this.cell.fresh) this.cell.add(' ');
  }

  structure({name, closes, end}, at) {
    if (name === 'table') {
      this.closeRow();
      this.end = closes ? end : at;
    } else if (name === 'tr') {
      this.closeRow();
      this.rowBegin = at;
    } else if (name === 'td' || name === 'th') {
      this.closeCell();
      if (!closes) this.openCell(name, this.text.slice(at, end), at);
    } else if (name === 'caption') {
      this.closeRow();
      this.rowBegin = at;
      if (!closes && this.table.caption === null) this.cell = new Cell({});
    } else if (name !== 'col' && name !== 'colgroup') {
      this.closeRow();
      this.section = name === 'thead' && !closes ? 'head' : 'rows';
    }
  }

  openCell(name, tag, at) {
    if (!this.row) {
      this.row = [];
      this.columns = this.hanging.reduce((sum, span) => sum + span.columns, 0);
      if (this.rowBegin < 0) this.rowBegin = at;
    }
    const columns = spanOf(tag, 'colspan', Math.max(1, kMaxColumns - this.columns));
    this.columns += columns;
    const rows = this.columns <= kMaxColumns ? spanOf(tag, 'rowspan', kMaxSpan) : 1;
    if (rows > 1) this.hanging.push({columns, rows});
    this.cell = new Cell({...(name === 'th' ? {header: true} : {}), ...(columns > 1 ? {colspan: columns} : {}), ...(rows > 1 ? {rowspan: rows} : {})});
  }

  closeCell() {
    if (!this.cell) return;
    const cell = this.restFrom < 0 ? this.cell.value() : null;
    this.cell = null;
    this.nested = 0;
    if (this.row) this.row.push(cell);
    else if (cell && this.room.spend([cell])) this.table.caption = cell.children;
    else if (cell) this.restFrom = this.rowBegin;
  }

  closeRow() {
    this.closeCell();
    if (this.row && this.restFrom < 0) {
      if (this.room.spend(this.row)) this.table[this.section].push(this.row);
      else this.restFrom = this.rowBegin;
      for (const span of this.hanging) --span.rows;
      this.hanging = this.hanging.filter((span) => span.rows > 0);
    }
    this.row = null;
    this.rowBegin = -1;
  }
}

// The tables among lines. All of their text is looked at once, whatever stands there.
export class HtmlTables {
  constructor(lines) {
    this.lines = lines;
    this.text = lines.join('\n');
    this.lower = lowerCase(this.text);
    this.begins = [0];
    for (const line of lines) this.begins.push(this.begins.at(-1) + line.length + 1);
    this.missing = new Set();
    this.barren = 0;  // no table begins before this place
  }

  // Where `closer` stands from `from` on; -1: nowhere.
  find(closer, from) {
    if (this.missing.has(closer)) return -1;
    const at = this.lower.indexOf(closer, from);
    if (at < 0) this.missing.add(closer);
    return at;
  }

  // Whether a table may begin with a line.
  static mayBegin = (line) => kMayStart.test(line);

  // The column at which a table may begin after other text; -1: none does. Code is no table.
  static columnWithin(line) {
    const at = kStartsWithin.exec(line)?.index ?? -1;
    return at > 0 && line.slice(0, at).split('`').length % 2 === 1 ? at : -1;
  }

  // The table that begins in line `i` at `column`: [block, the line after it]; null: none does. Text that stands after the
  // table remains as that line. `answer`: {room, growing}; of an answer that grows, a table without a cell is one, too.
  read(i, column, {room, growing}) {
    const cut = this.begins[i + 1] - 1 - this.begins[i] - this.lines[i].length;  // of the line's beginning, by an earlier table
    kStart.lastIndex = this.begins[i] + cut + column;
    if (kStart.lastIndex < this.barren || !kStart.test(this.text)) return null;
    const begin = kStart.lastIndex;
    const {table, end: tableEnd, whole} = new TableReader(this, begin, room).read();
    if (!table && !(growing && !whole)) {
      this.barren = tableEnd;
      return null;
    }
    kFrameEnds.lastIndex = tableEnd;
    kFrameEnds.test(this.text);
    const end = kFrameEnds.lastIndex;
    let next = i;
    while (next + 1 < this.lines.length && this.begins[next + 1] <= end) ++next;
    this.lines[next] = this.text.slice(end, this.begins[next + 1] - 1);
    if (!this.lines[next].trim()) ++next;
    return [table ?? {kind: 'table', caption: null, head: [], rows: [], rest: ''}, next];
  }
}
