// Fields of requests beside the question: policy, budget and reuse of one answer or of two, and how to sample.
import {policies, sideError} from './api.js';
import {isSame} from './comparing.js';
import {byId, el} from './dom.js';
import {loadSettings, saveSettings} from './store.js';

const kGeneral = ['system', 'temperature', 'maxTokens', 'topP', 'topK', 'minP', 'seed', 'repetition', 'presence', 'frequency', 'shrink'];
const kSide = [
  ['kv', 'Policy', 'policies'],
  ['budget', 'Budget', null],
  ['reuse', 'Reuse', 'reuses'],
];
const kFirst = ['auto', 'draft', 'full'];  // of the policies that are offered
const kHint = 'Budget: a share of the tokens (0.1), a number of them (200) or memory (64MiB).';
const kPause = 200;  // ms without a key before the server is asked

// The field of a side that a refusal is about, and its message without the known names: the field lists them.
export function wrongField(error) {
  const said = error.replace(/; there are .*$/s, '');
  const name = /budget/i.test(said) ? 'budget' : /reuse/i.test(said) ? 'reuse' : 'kv';
  const label = kSide.find(([field]) => field === name)[1];
  return {name, text: `${label}: ${said.replace(/^(Settings, \w+|KV budget): /, '')}`};
}

export class Settings {
  constructor() {
    this.values = loadSettings();
    this.dialog = byId('settings');
    this.server = null;  // {kv, budget, reuse} of requests that leave them out
    this.checks = {};    // by side, the AbortController of the check that is due
    const form = this.dialog.querySelector('form');
    for (const set of form.querySelectorAll('[data-side]')) {
      const fields = kSide.map(([name, label, list]) =>
        el('label', {}, label, el('input', {name: `${set.dataset.side}.${name}`, list, autocomplete: 'off', spellcheck: 'false'})));
      set.append(el('div', {class: 'grid'}, fields), el('p', {class: 'said', role: 'status'}));
    }
    this.fields = form.elements;
    this.write();
    form.addEventListener('input', () => {
      this.read();
      this.checkSides(kPause);
    });
    byId('open-settings').addEventListener('click', () => {
      this.dialog.showModal();
      this.dialog.querySelector('.inside').scrollTop = 0;
      this.checkSides(0);
    });
    policies().then((list) => {
      const rank = ({name}) => (kFirst.includes(name) ? kFirst.indexOf(name) : kFirst.length);
      const ordered = list.sort((a, b) => rank(a) - rank(b));
      byId('policies').replaceChildren(...ordered.map(({name, meaning}) => el('option', {value: name, label: `${name}: ${meaning}`})));
    }).catch(() => {});  // names may be typed all the same
  }

  field = (side, name) => this.fields[`${side}.${name}`];

  // `server`: {kv, budget, reuse} of requests that leave them out.
  setServer(server) {
    this.server = server;
    this.showDefaults();
  }

  write() {
    for (const name of kGeneral) this.fields[name].value = this.values[name];
    this.fields.compare.checked = this.values.compare;
    for (const side of ['a', 'b']) {
      for (const [name] of kSide) this.field(side, name).value = this.values[side][name] ?? '';
    }
    this.showSides();
  }

  // `values` stays the same object: others hold on to it.
  read() {
    for (const name of kGeneral) this.values[name] = this.fields[name].value.trim();
    this.values.compare = this.fields.compare.checked;
    for (const side of ['a', 'b']) {
      this.values[side] = Object.fromEntries(kSide.map(([name]) => [name, this.field(side, name).value.trim()]));
    }
    this.showSides();
    saveSettings(this.values);
  }

  showSides() {
    this.dialog.querySelector('[data-side="b"]').hidden = !this.values.compare;
    byId('same-sides').hidden = !this.values.compare || !isSame(this.values.a, this.values.b);
    this.showDefaults();
  }

  // Each empty field shows the value that applies.
  showDefaults() {
    const own = (value, none) => (this.server ? value || none : 'the server’s');
    for (const side of ['a', 'b']) {
      const {kv, budget} = this.values[side];
      this.field(side, 'kv').placeholder = budget ? 'auto' : own(this.server?.kv, 'full');
      this.field(side, 'budget').placeholder = kv ? '0.1, if it has one' : own(this.server?.budget, 'none');
      this.field(side, 'reuse').placeholder = own(this.server?.reuse, 'auto');
    }
  }

  // After `pause` ms without another call: says why the server would refuse a side; Done waits until it is mended.
  checkSides(pause) {
    for (const side of ['a', 'b']) {
      this.checks[side]?.abort();
      const check = (this.checks[side] = new AbortController());
      this.tell(side, '');
      if (isSame(this.values[side], {}) || (side === 'b' && !this.values.compare)) continue;
      setTimeout(async () => {
        const error = check.signal.aborted ? null : await sideError(this.values[side], check.signal);
        if (error !== null && !check.signal.aborted) this.tell(side, error);
      }, pause);
    }
  }

  tell(side, error) {
    const wrong = error ? wrongField(error) : null;
    for (const [name] of kSide) {
      const input = this.field(side, name);
      input.setCustomValidity(wrong?.name === name ? wrong.text : '');
      input.toggleAttribute('aria-invalid', wrong?.name === name);
    }
    const said = this.dialog.querySelector(`[data-side="${side}"] .said`);
    said.textContent = wrong?.text ?? kHint;
    said.classList.toggle('wrong', wrong !== null);
  }
}
