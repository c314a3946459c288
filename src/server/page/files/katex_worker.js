// Reads LaTeX with KaTeX, away from the page: a worker has no document. What KaTeX would build there is built of these few
// nodes, and goes to the page as [name, attributes, children] and strings.
/* global importScripts, katex */
importScripts('katex.js');

class Node {
  constructor(name) {
    Object.assign(this, {name, attributes: {}, children: [], style: {}});
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  appendChild(child) {
    this.children.push(...(child.name === '' ? child.children : [child]));
    return child;
  }
  set textContent(text) {
    this.children = text ? [{text}] : [];
  }
  // Without the copy of the source that stands beside a formula.
  tree() {
    const shown = this.children.filter((child) => child.name !== 'annotation');
    return [this.name, this.attributes, shown.map((child) => (child.text === undefined ? child.tree() : child.text))];
  }
}

self.document = {
  compatMode: 'CSS1Compat',
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  createTextNode: (text) => ({text}),
  createDocumentFragment: () => new Node(''),
};

// Without what links, loads or styles; a macro may not expand for ever, an error is shown as the formula's text.
function treeOf(text, display) {
  const box = new Node('span');
  katex.render(text, box, {output: 'mathml', displayMode: display, trust: false, maxExpand: 200, maxSize: 20, strict: false, throwOnError: true});
  return box.children[0].tree()[2][0];  // the span of KaTeX's holds the formula
}

self.onmessage = ({data: {text, display}}) => {
  let tree = null;
  try {
    tree = treeOf(text, display);
  } catch {
    // not LaTeX, or too much of it
  }
  self.postMessage(tree);
};
self.postMessage('ready');
