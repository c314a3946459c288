// Formulas as MathML. KaTeX reads them in a thread of its own (katex_worker.js), which ends when a formula takes too long;
// the result is names and texts, of which only names of MathML's presentation become elements.
import {el} from './dom.js';

const kLimit = 1000;     // ms for a formula
const kLongest = 5000;   // characters of one
const kKnown = 2000;     // formulas that are remembered
const kNames = new Set(['math', 'semantics', 'mrow', 'mi', 'mn', 'mo', 'ms', 'mtext', 'mspace', 'msup', 'msub', 'msubsup', 'mfrac', 'msqrt', 'mroot',
  'mtable', 'mtr', 'mtd', 'mlabeledtr', 'munder', 'mover', 'munderover', 'mpadded', 'mphantom', 'menclose', 'mstyle']);
const kAttributes = new Set(['display', 'mathvariant', 'stretchy', 'fence', 'separator', 'lspace', 'rspace', 'width', 'height', 'depth', 'minsize',
  'maxsize', 'accent', 'accentunder', 'linethickness', 'columnalign', 'rowspacing', 'columnspacing', 'columnlines', 'rowlines', 'scriptlevel',
  'displaystyle', 'notation', 'voffset', 'largeop', 'movablelimits', 'symmetric', 'form', 'mathsize', 'side']);

// A tree of [name, attributes, children] and strings; a name that is not MathML's is dropped with its content.
function nodeOf(tree) {
  if (typeof tree === 'string') return document.createTextNode(tree);
  const [name, attributes, children] = tree;
  if (!kNames.has(name)) return document.createTextNode('');
  const node = document.createElementNS('http://www.w3.org/1998/Math/MathML', name);
  for (const [key, value] of Object.entries(attributes)) {
    if (kAttributes.has(key)) node.setAttribute(key, value);
  }
  node.append(...children.map(nodeOf));
  return node;
}

// Reads one formula after another. `limit`: ms for one.
export class Formulas {
  constructor(limit = kLimit) {
    this.limit = limit;
    this.known = new Map();  // by formula: its tree, or null for one that cannot be shown
    this.queue = [];         // of {key, text, display, nodes}; the first one is being read
  }

  // An element that shows the formula, at first and for good where it cannot be read as LaTeX.
  element(text, display) {
    const node = el(display ? 'div' : 'span', {class: display ? 'math display' : 'math'});
    const key = `${display ? 'd' : 'i'}${text}`;
    if (this.known.has(key)) {
      this.show(node, text, this.known.get(key));
      return node;
    }
    this.show(node, text, null);
    if (text.length > kLongest) return node;
    const waiting = this.queue.find((job) => job.key === key);
    if (waiting) waiting.nodes.push(node);
    else if (this.queue.push({key, text, display, nodes: [node]}) === 1) this.next();
    return node;
  }

  show(node, text, tree) {
    node.replaceChildren(tree === null ? el('code', {}, text) : nodeOf(tree));
  }

  next() {
    const job = this.queue[0];
    if (!job) return;
    if (!this.worker) {
      this.worker = new Worker(new URL('katex_worker.js', import.meta.url));
      this.worker.onmessage = ({data}) => (data === 'ready' ? this.next() : this.answered(data));
      this.worker.onerror = () => this.answered(null);
      return;  // its time begins when KaTeX is loaded
    }
    this.timer = setTimeout(() => {
      this.worker.terminate();
      this.worker = null;
      this.answered(null);
    }, this.limit);
    this.worker.postMessage({text: job.text, display: job.display});
  }

  answered(tree) {
    clearTimeout(this.timer);
    const job = this.queue.shift();
    if (!job) return;
    if (this.known.size >= kKnown) this.known.clear();
    this.known.set(job.key, tree);
    for (const node of job.nodes) this.show(node, job.text, tree);
    this.next();
  }
}

export const formulas = new Formulas();
