// What the server does right now: requests, KV memory, caches and tiers, polled every second while the panel is open.
import {cacheStats} from './api.js';
import {button, byId, el, facts} from './dom.js';
import {bytes, count, share} from './format.js';
import {readBefore} from './words.js';

const kEvery = 1000;  // ms
const kKept = 60;     // values of a line

const kNames = {prefix: 'Beginnings of prompts', image_kv: 'Images read before', encoder: 'Images encoded before'};

function meter(label, value, max, text) {
  return el('div', {class: 'meter'}, el('span', {}, label), el('meter', {min: 0, max: Math.max(1, max), value: String(value), 'aria-label': label}), el('span', {class: 'soft'}, text));
}

function reasons(misses) {
  const list = Object.entries(misses).sort((a, b) => b[1] - a[1]);
  if (list.length === 0) return null;
  return el('details', {}, el('summary', {}, 'why missed'), facts(list.map(([why, n]) => [why || 'no reason given', n])));
}

const hitRate = ({hits, misses}) => share(hits, hits + misses);

// Of tokens where they are counted: a beginning that all prompts have is a hit of a few tokens.
const savedRate = (cache) => (cache.asked_tokens > 0 ? `${cache.tokens.toLocaleString('en')} of ${count(cache.asked_tokens, 'token')} (${share(cache.tokens, cache.asked_tokens)})` : null);

// `found`: facts about its hits.
function cacheSection(name, cache, found) {
  return el('section', {}, el('h3', {}, kNames[name]),
    facts([...found, ['held', bytes(cache.bytes)], ['evicted', cache.evictions > 0 ? cache.evictions : null]]), reasons(cache.miss_reasons));
}

const hitsOf = (cache) => `${cache.hits} of ${cache.hits + cache.misses}`;

// An image is looked for as a part of a prompt's beginning first, then by itself.
function cacheSections(stats) {
  const {prefix, image_kv: images, encoder} = stats, {images: within} = stats.images_in_prefixes;
  const found = within + images.hits, all = found + images.misses;
  return [
    cacheSection('prefix', prefix, [['found', savedRate(prefix)], ['hits', hitsOf(prefix)]]),
    cacheSection('image_kv', images, [['found', `${found} of ${all} (${share(found, all)})`], ['in beginnings', within || null], ['elsewhere', images.hits || null]]),
    cacheSection('encoder', encoder, [['hits', `${hitsOf(encoder)} (${hitRate(encoder)})`]])];
}

function tierSection(name, tier) {
  return el('section', {}, el('h3', {}, `Tier ${name}`),
    facts([['hits', `${tier.hits} of ${tier.hits + tier.misses} (${hitRate(tier)})`],
      ['failed', tier.failed > 0 ? tier.failed : null],
      ['read', bytes(tier.bytes_read)], ['written', bytes(tier.bytes_written)],
      ['evicted', tier.evictions > 0 ? tier.evictions : null]]),
    reasons(tier.miss_reasons));
}

// Measurements of answers under reuse, where the server measures it.
function reuseSection(reuse) {
  if (!reuse) return null;
  return el('section', {}, el('h3', {}, 'Reuse of images'),
    ...Object.entries(reuse.by_codec).map(([codec, {one_image: one, several_images: several}]) =>
      facts([['KV', codec], ['one in a prompt', one.text], ['several', several.text]])));
}

export class Live {
  constructor() {
    this.node = byId('live');
    this.opener = byId('open-live');
    this.opener.addEventListener('click', () => this.toggle());
    this.body = el('div', {});
    this.peaks = [];  // requests that ran, second by second
    this.node.append(
      el('div', {class: 'bar'}, el('h2', {}, 'Live'), el('span', {class: 'space'}), button('Close', () => this.toggle(), {class: 'quiet'})), this.body);
    document.addEventListener('visibilitychange', () => this.ask());
  }

  isOpen = () => !this.node.hidden;

  toggle() {
    const opens = this.node.hidden;
    const inside = this.node.contains(document.activeElement);
    this.node.hidden = !opens;
    this.opener.setAttribute('aria-expanded', opens);
    if (inside) this.opener.focus();
    this.ask();
  }

  // Now, and again in a second; not while the panel is hidden.
  async ask() {
    clearTimeout(this.timer);
    this.pending?.abort();
    if (!this.isOpen() || document.hidden) return;
    const pending = (this.pending = new AbortController());
    try {
      this.show(await cacheStats(pending.signal));
    } catch (error) {
      if (error.name === 'AbortError') return;
      this.body.replaceChildren(el('p', {class: 'wrong'}, error.message), el('p', {class: 'soft'}, 'It is asked again every second.'));
    }
    if (pending === this.pending) this.timer = setTimeout(() => this.ask(), kEvery);
  }

  show(stats) {
    const {running, waiting} = stats.requests;
    this.peaks = [...this.peaks, running].slice(-kKept);
    const held = Object.keys(kNames).reduce((sum, name) => sum + stats[name].bytes, 0);
    const open = [...this.body.querySelectorAll('details')].map((node) => node.open);
    const sections = [
      el('p', {class: 'verdict'}, readBefore(stats)),
      el('section', {}, el('h3', {}, 'Requests'),
        facts([['running', running], ['waiting', waiting], ['most seen in a minute', Math.max(...this.peaks)]])),
      el('section', {}, el('h3', {}, 'KV pages'),
        stats.kv ? meter('in use', stats.kv.bytes, stats.kv.max_bytes, `${bytes(stats.kv.bytes)} of ${bytes(stats.kv.max_bytes)}`) : null,
        meter('kept to be reused', held, stats.max_bytes, `${bytes(held)} of ${bytes(stats.max_bytes)}, all caches`)),
      ...cacheSections(stats),
      ...[reuseSection(stats.reuse)].filter(Boolean),
      ...Object.entries(stats.tiers).map(([name, tier]) => tierSection(name, tier))];
    this.body.replaceChildren(...sections);
    this.body.querySelectorAll('details').forEach((node, i) => (node.open = open[i] ?? false));
  }
}
