// Elements from values, never from markup: what a model says cannot become more than text.

// Functions become listeners of "onclick" and so on; true and false say whether an attribute is there.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name.slice(2), value);
    else if (name === 'value') node.value = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

export const byId = (id) => document.getElementById(id);

export const button = (text, onclick, more = {}) => el('button', {type: 'button', onclick, ...more}, text);

// A list of terms and their values; pairs without a value are left out.
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return el('dl', {class: 'facts'}, shown.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]).flat());
}

export function announce(text) {
  byId('status').textContent = text;
}

// A failure outside of an answer; '': none any more. `retry`: the function of a button “Try again”, or null.
export function notice(text, retry = null) {
  byId('notice').replaceChildren(...(text ? [el('span', {}, text)] : []), ...(text && retry ? [' ', button('Try again', retry, {class: 'quiet'})] : []));
}

// Asks for a line; null: cancelled. `value` undefined: only yes ('') or no. `error`: why it is asked once more.
export function ask(title, {label = '', value, type = 'text', error = ''} = {}) {
  const dialog = byId('ask');
  const input = dialog.querySelector('input');
  byId('ask-title').textContent = title;
  byId('ask-label').hidden = value === undefined;
  byId('ask-label').firstElementChild.textContent = label;
  byId('ask-error').textContent = error;
  input.type = type;
  input.value = value ?? '';
  dialog.returnValue = '';
  dialog.querySelector('[data-no]').onclick = () => dialog.close('');
  dialog.showModal();
  if (value !== undefined) input.select();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes' ? input.value : null), {once: true});
  });
}
