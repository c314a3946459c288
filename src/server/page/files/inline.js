// The inside of a paragraph or a table's cell: emphasis, code, links, formulas and a few elements of HTML, read into strings and
//   {kind: 'code', text}, {kind: 'math', text, display}, {kind: 'break'}, {kind: 'link', href, children},
//   {kind: 'strong' | 'em' | 'strike' | 'underline' | 'sub' | 'sup', children}.
// Knows nothing of a browser. Text that is none of these stays text.

const kMaxDepth = 12;      // of emphasis in emphasis: the rest is text
const kMaxLabel = 1000;    // characters of a link's text
const kMaxTag = 1000;      // characters of a tag

// Only pages of the web: no script, no data, no file.
export function webAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : null;
  } catch {
    return null;
  }
}

const kMark = /\\[!-/:-@[-`{-~]|`+|\*+|_+|~~|!?\[|\$\$?|https?:\/\/[^\s<>]+|<\/?[a-zA-Z]/g;
const kTarget = /\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+"[^"]*")?\s*\)/y;
const kAfterUrl = /[.,;:!?)'"*_~\]]+$/;
const kKinds = {'*': 'em', '**': 'strong', '_': 'em', '__': 'strong', '~~': 'strike'};
// Elements of HTML that are shown, by their tags.
export const kElements = {b: 'strong', strong: 'strong', i: 'em', em: 'em', s: 'strike', del: 'strike', strike: 'strike', u: 'underline', sub: 'sub', sup: 'sup'};
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

// ASCII only: every character stays in its place.
export const lowerCase = (text) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());

const kTagName = /<(\/?)([a-zA-Z][a-zA-Z0-9]*)(?=[\s/>])/y;

// {name in lower case, closes, end} of the tag that begins at `i`; null: none does, or it has no end.
export function tagAt(text, i) {
  kTagName.lastIndex = i;
  const match = kTagName.exec(text);
  if (!match) return null;
  const last = Math.min(text.length, i + kMaxTag);
  let quote = '';
  for (let j = kTagName.lastIndex, before = ''; j < last; ++j) {
    const c = text[j];
    if (quote) {
      if (c === quote) quote = '';
    } else if (c === '>') {
      return {name: match[2].toLowerCase(), closes: match[1] !== '', end: j + 1};
    } else if (c === '<') {
      return null;
    } else if ((c === '"' || c === "'") && before === '=') {
      quote = c;
    }
    if (!isSpace(c)) before = c;
  }
  return null;
}

// Reads one paragraph. A closing mark that has not been found is not sought again, so time grows with the text's length.
class Inline {
  // `decode`: from a piece of the source to the text that it means.
  constructor(text, depth, decode) {
    this.text = text;
    this.depth = depth;
    this.decode = decode;
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
        if (plain) out.push(this.decode(plain));
        plain = '';
        out.push(found.node);
      }
    }
    plain += this.text.slice(at);
    if (plain) out.push(this.decode(plain));
    return out;
  }

  inside = (text) => new Inline(text, this.depth + 1, this.decode).read();

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
    if (c === '<') return this.element(i);
    return this.emphasis(i, mark);
  }

  // The first place from `from` on where `closer` stands and `fits` holds; -1: nowhere.
  find(closer, from, fits = () => true, text = this.text) {
    if (this.missing.has(closer)) return -1;
    for (let j = text.indexOf(closer, from); j >= 0; j = text.indexOf(closer, j + 1)) {
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
    return {node: {kind: 'code', text: this.decode(text.trim() ? text.replace(/^ (.*) $/s, '$1') : text)}, end: end + ticks.length};
  }

  math(i, opener, closer, display) {
    const begin = i + opener.length, end = this.find(closer, begin);
    if (end < 0) return null;
    const text = this.text.slice(begin, end).trim();
    return text ? {node: {kind: 'math', text: this.decode(text), display}, end: end + closer.length} : null;
  }

  // A price is no formula: "$5 and $10" has a space before its second sign and a digit after it.
  dollars(i) {
    let end = i;
    do end = this.text.indexOf('$', end + 1);
    while (this.text[end - 1] === '\\');
    if (end <= i + 1 || isSpace(this.text[i + 1]) || isSpace(this.text[end - 1]) || /\d/.test(this.text[end + 1] ?? '')) return null;
    return {node: {kind: 'math', text: this.decode(this.text.slice(i + 1, end)), display: false}, end: end + 1};
  }

  // <b>…</b> and its like, without their attributes.
  element(i) {
    const tag = tagAt(this.text, i);
    if (tag?.name === 'br') return {node: {kind: 'break'}, end: tag.end};
    if (!tag || tag.closes || !Object.hasOwn(kElements, tag.name)) return null;
    this.lower ??= lowerCase(this.text);
    const closer = `</${tag.name}>`, end = this.find(closer, tag.end, undefined, this.lower);
    if (end < 0) return null;
    return {node: {kind: kElements[tag.name], children: this.inside(this.text.slice(tag.end, end))}, end: end + closer.length};
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
    const href = target && webAddress(this.decode(target[1]));
    if (!href) return null;
    const label = this.text.slice(i + mark.length, j);
    const children = mark === '[' ? this.inside(label) : [`image: ${this.decode(label) || href}`];
    return {node: {kind: 'link', href, children: children.length > 0 ? children : [href]}, end: kTarget.lastIndex};
  }

  address(i, text) {
    const balanced = text.includes('(') && text.endsWith(')');
    const shown = balanced ? text : text.replace(kAfterUrl, '');
    const href = webAddress(this.decode(shown));
    return href && !isWord(this.text[i - 1]) ? {node: {kind: 'link', href, children: [this.decode(shown)]}, end: i + shown.length} : null;
  }
}

export const inline = (text, decode = (plain) => plain) => new Inline(text, 0, decode).read();
