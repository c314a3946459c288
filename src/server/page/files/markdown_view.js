// An answer's text as elements. Blocks that have not changed since the last look stay the same elements, so that a fold
// stays open and a selection stays selected while the answer grows.
import {button, el} from './dom.js';
import {markdown} from './markdown.js';
import {count} from './format.js';
import {formulas} from './math.js';
import {tabSeparated} from './plain_text.js';

const kTags = {strong: 'strong', em: 'em', strike: 's', underline: 'u', sub: 'sub', sup: 'sup', break: 'br'};

function inlineNode(part) {
  if (typeof part === 'string') return part;
  if (part.kind === 'code') return el('code', {}, part.text);
  if (part.kind === 'math') return formulas.element(part.text, part.display);
  if (part.kind === 'link') {
    return el('a', {href: part.href, rel: 'noopener noreferrer', target: '_blank', title: part.href}, part.children.map(inlineNode));
  }
  return el(kTags[part.kind], {}, (part.children ?? []).map(inlineNode));
}

const inlineNodes = (children) => children.map(inlineNode);

// `text`: a string, or a function that makes it.
export function copyButton(text, label = 'Copy') {
  if (!navigator.clipboard) return null;
  const node = button(label, async () => {
    await navigator.clipboard.writeText(typeof text === 'function' ? text() : text);
    node.textContent = 'Copied';
    setTimeout(() => (node.textContent = label), 2000);
  }, {class: 'quiet copy'});
  return node;
}

function codeNode({language, text}) {
  return el('div', {class: 'code'},
    el('div', {class: 'bar'}, el('span', {class: 'soft'}, language || 'text'), el('span', {class: 'space'}), copyButton(text)),
    el('pre', {tabindex: 0, role: 'region', 'aria-label': `Code${language ? `, ${language}` : ''}`}, el('code', {}, text)));
}

function rowNode(cells, scope) {
  return el('tr', {}, cells.map(({children, header, align, colspan, rowspan}) =>
    el(header ? 'th' : 'td', {class: align ? `to-${align}` : null, scope: header ? scope : null, colspan, rowspan}, inlineNodes(children))));
}

function tableNode(table) {
  const {caption, head, rows, rest} = table;
  const isHead = (row) => row.every((cell) => cell.header);
  return el('div', {class: 'of-table'},
    el('div', {class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table'}, el('table', {},
      caption ? el('caption', {}, inlineNodes(caption)) : null,
      head.length > 0 ? el('thead', {}, head.map((row) => rowNode(row, 'col'))) : null,
      el('tbody', {}, rows.map((row) => rowNode(row, isHead(row) ? 'col' : 'row'))))),
    rest ? [el('p', {class: 'soft'}, `A table this large is shown in part: the first ${count(head.length + rows.length, 'row')}; the rest as text.`),
      el('pre', {tabindex: 0, role: 'region', 'aria-label': 'The rest of the table'}, rest)] : null,
    head.length + rows.length > 1 ? copyButton(() => tabSeparated(table), 'Copy table') : null);
}

// An item that is one paragraph is shown without its margins.
const itemNode = (blocks) => el('li', {}, blocks.flatMap((block) => (block.kind === 'paragraph' ? inlineNodes(block.children) : [blockNode(block)])));
const isLoose = (blocks) => blocks.filter((block) => block.kind === 'paragraph').length > 1;

const kNodes = {
  paragraph: ({children}) => el('p', {}, inlineNodes(children)),
  heading: ({level, children}) => el('p', {class: 'heading', role: 'heading', 'aria-level': Math.min(6, level + 3)}, inlineNodes(children)),
  rule: () => el('hr', {}),
  quote: ({blocks}) => el('blockquote', {}, blocks.map(blockNode)),
  list: ({ordered, start, items}) => el(ordered ? 'ol' : 'ul', ordered && start !== 1 ? {start} : {},
    items.map((blocks) => (isLoose(blocks) ? el('li', {}, blocks.map(blockNode)) : itemNode(blocks)))),
  code: codeNode,
  math: ({text}) => formulas.element(text, true),
  table: tableNode,
  thought: ({blocks, open}) => el('details', {class: 'thought'}, el('summary', {}, open ? 'Thinking…' : 'Thought'), blocks.map(blockNode)),
};

const blockNode = (block) => kNodes[block.kind](block);

export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.keys = [];
  }

  // `thought`: what the model said to itself, '' if nothing; `growing`: more is to come.
  show(text, thought = '', growing = false) {
    const blocks = markdown(text, growing);
    if (thought) blocks.unshift({kind: 'thought', blocks: markdown(thought), open: growing && !text});
    const keys = blocks.map((block) => JSON.stringify(block));
    blocks.forEach((block, i) => {
      if (keys[i] === this.keys[i]) return;
      const node = blockNode(block), old = this.node.childNodes[i];
      if (node.tagName === 'DETAILS' && old?.tagName === 'DETAILS') node.open = old.open;
      if (old) old.replaceWith(node);
      else this.node.append(node);
    });
    while (this.node.childNodes.length > blocks.length) this.node.lastChild.remove();
    this.keys = keys;
  }
}
