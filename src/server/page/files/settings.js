// Fields of requests beside the question: policy, budget and reuse of one answer or of two, and how to sample.
import {policies} from './api.js';
import {byId, el} from './dom.js';
import {loadSettings, saveSettings} from './store.js';

const kGeneral = ['system', 'temperature', 'maxTokens', 'topP', 'topK', 'minP', 'seed', 'repetition', 'presence', 'frequency', 'shrink'];
const kSide = [
  ['kv', 'Policy', 'policies', 'the server’s; auto is recommended'],
  ['budget', 'Budget', null, '0.1, 200 or 64MiB'],
  ['reuse', 'Reuse', 'reuses', 'the server’s'],
];

export class Settings {
  constructor() {
    this.values = loadSettings();
    this.dialog = byId('settings');
    const form = this.dialog.querySelector('form');
    for (const set of form.querySelectorAll('[data-side]')) {
      for (const [name, label, list, placeholder] of kSide) {
        const input = el('input', {name: `${set.dataset.side}.${name}`, list, placeholder, autocomplete: 'off', spellcheck: 'false'});
        set.append(el('label', {}, `${label} `, input));
      }
    }
    this.fields = form.elements;
    this.write();
    form.addEventListener('input', () => this.read());
    byId('open-settings').addEventListener('click', () => {
      this.dialog.showModal();
      this.dialog.querySelector('.inside').scrollTop = 0;
    });
    policies().then((list) => {
      byId('policies').replaceChildren(...list.map(({name, meaning}) => el('option', {value: name, label: `${name}: ${meaning}`})));
    }).catch(() => {});  // names may be typed all the same
  }

  write() {
    for (const name of kGeneral) this.fields[name].value = this.values[name];
    this.fields.compare.checked = this.values.compare;
    for (const side of ['a', 'b']) {
      for (const [name] of kSide) this.fields[`${side}.${name}`].value = this.values[side][name] ?? '';
    }
    this.showSides();
  }

  // `values` stays the same object: others hold on to it.
  read() {
    for (const name of kGeneral) this.values[name] = this.fields[name].value.trim();
    this.values.compare = this.fields.compare.checked;
    for (const side of ['a', 'b']) {
      this.values[side] = Object.fromEntries(kSide.map(([name]) => [name, this.fields[`${side}.${name}`].value.trim()]));
    }
    this.showSides();
    saveSettings(this.values);
  }

  showSides() {
    this.dialog.querySelector('[data-side="b"]').hidden = !this.values.compare;
  }
}
