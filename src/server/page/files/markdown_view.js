// An answer's text as elements. Blocks that have not changed since the last look stay the same elements, so that a fold
// stays open and a selection stays selected while the answer grows.
import {button, el} from './dom.js';
import {markdown} from './markdown.js';
import {formulas} from './math.js';

const kTags = {strong: 'strong', em: 'em', strike: 's', break: 'br'};

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

export function copyButton(text, label = 'Copy') {
  if (!navigator.clipboard) return null;
  const node = button(label, async () => {
    await navigator.clipboard.writeText(text);
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

function tableNode({align, head, rows}) {
  const cell = (tag, children, column) => el(tag, {class: align[column] ? `to-${align[column]}` : null, scope: tag === 'th' ? 'col' : null}, inlineNodes(children));
  return el('div', {class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table'}, el('table', {},
    el('thead', {}, el('tr', {}, head.map((children, column) => cell('th', children, column)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((children, column) => cell('td', children, column)))))));
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

  // `thought`: what the model said to itself, '' if nothing; `thinking`: the thought continues.
  show(text, thought = '', thinking = false) {
    const blocks = markdown(text);
    if (thought) blocks.unshift({kind: 'thought', blocks: markdown(thought), open: thinking && !text});
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
