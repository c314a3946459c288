// The page: which conversation is shown, and what buttons and keys do.
import {modelFacts} from './api.js';
import {Chat, addImported, endAnswers, loadConversations, newConversation, storedConversation} from './chat.js';
import {Composer} from './composer.js';
import {exported, imported} from './conversation_file.js';
import {documentOfUri} from './documents.js';
import {announce, ask, byId, el, notice} from './dom.js';
import {usedTokens} from './length.js';
import {Live} from './live.js';
import {pictureOfUri} from './pictures.js';
import {announcement} from './plain_text.js';
import {found} from './search.js';
import {Settings} from './settings.js';
import {openStore, pictures, setTourState, tourState} from './store.js';
import {Tabs} from './tabs.js';
import {Thread} from './thread.js';
import {Tour} from './tour.js';
import {videoOfUri} from './videos.js';

const settings = new Settings();
const live = new Live();
const chat = new Chat(settings.values, {changed, saved: (conversation) => tabs.saved(conversation.id, chat.isRunning(conversation)),
  unsaved: (error) => notice(`This browser does not keep the conversation: ${error.message}`)});
const tabs = new Tabs({saved: takeFromTab, removed: forgetFromTab, stop: (id) => chat.stop({id})});
const thread = new Thread(byId('thread'), {
  edit, regenerate: () => guarded(chat.regenerate(current)), changed: () => guarded(otherVersion())});
const composer = new Composer(settings.values, {send, stop, editLast: () => thread.editLast(), used: () => usedTokens(current)});
const tour = new Tour({begin: putQuestion, newConversation: () => open(newConversation()), again: () => guarded(chat.regenerate(current)),
  failed: (error, retry) => notice(error.message, retry), end: endTour});

let all = [];
let blank = newConversation();    // not in `all` before its first question; until then it keeps the draft
let current = blank;
const elsewhere = new Set();      // ids of conversations in which another tab answers
let model = null;                 // as modelFacts gives it, once the server has said

// The element after the messages: the tour, or the offers of an empty conversation.
function afterMessages(running) {
  if (current.tour && tourState() !== 'over') return running ? null : tour.next(current);
  if (current.messages.length > 0) return null;
  const isFirst = tourState() === '' && all.every((conversation) => conversation.tour);
  if (model && (isFirst || tourState() === 'wanted')) return tour.welcome(model.sees);
  return el('p', {class: 'soft empty'}, model && !model.sees ? 'Ask a question.' : 'Add an image and ask about it.');
}

const isRunning = (conversation) => chat.isRunning(conversation) || elsewhere.has(conversation.id);

function show() {
  const running = isRunning(current);
  thread.show(current, running, afterMessages(running));
  composer.openDraft(current.id);
  composer.setRunning(running);
  byId('name').textContent = current.name || 'New conversation';
  const empty = current.messages.length === 0;
  for (const id of ['rename', 'export', 'delete']) byId(id).hidden = empty;
  showList();
  if (document.activeElement === document.body) byId('thread').querySelector('[data-focus="tour"]')?.focus({preventScroll: true});
}

function listItem(conversation, hit) {
  const choose = () => {
    open(conversation);
    show();
    if (hit?.index != null) thread.showAt(hit.index);
    else thread.toEnd();
  };
  const text = [conversation.name, isRunning(conversation) ? el('span', {class: 'cursor', 'aria-label': ', answering'}) : '',
    hit?.snippet ? el('span', {class: 'soft snippet'}, hit.snippet) : ''];
  return el('li', {}, el('button', {type: 'button', onclick: choose, 'aria-current': conversation === current ? 'page' : null}, text));
}

function showList() {
  const words = byId('search').value;
  const shown = all.map((conversation) => [conversation, words.trim() ? found(conversation, words) : {}]).filter(([, hit]) => hit);
  byId('list').replaceChildren(...shown.map(([conversation, hit]) => listItem(conversation, hit)));
  byId('found').textContent = words.trim() && shown.length === 0 ? 'Nothing found.' : '';
}

// Failures of the page itself: no room left in the browser, say.
async function guarded(work) {
  try {
    await work;
  } catch (error) {
    notice(error.message || String(error));
    show();
  }
}

function changed(conversation, answer) {
  if (conversation !== current) {
    if (answer === null) showList();
    return;
  }
  if (answer !== null) {
    thread.update(answer);
    return;
  }
  show();
  if (chat.isRunning(conversation)) {
    announce('Answering');
    thread.toEnd();
    return;
  }
  announce(announcement(conversation.messages.at(-1).answers));
  if (!model) showModel();
}

// `more`: as of Chat.ask.
async function putQuestion(conversation, text, more) {
  if (!all.includes(conversation)) all.unshift(conversation);
  notice('');
  await guarded(chat.ask(conversation, text, more));
}

function send(text, more) {
  putQuestion(current, text, more);
}

function stop() {
  if (!elsewhere.delete(current.id)) {
    chat.stop(current);
    return;
  }
  tabs.stop(current.id);
  endAnswers(current);  // that tab may have been closed
  show();
}

// Another tab has saved a conversation. What this tab answers in stays as it is here.
async function takeFromTab(id, running) {
  if (chat.isRunning({id})) return;
  const stored = await storedConversation(id, running);
  if (!stored) return;
  if (running) elsewhere.add(id);
  else elsewhere.delete(id);
  const known = all.find((conversation) => conversation.id === id);
  if (known) Object.assign(known, stored);
  else all.unshift(stored);
  if (known && known === current) show();
  else showList();
}

function forgetFromTab(id) {
  const gone = all.find((conversation) => conversation.id === id);
  if (!gone) return;
  chat.forget(gone);
  all = all.filter((conversation) => conversation !== gone);
  if (gone === current) openBlank();
  else showList();
}

async function otherVersion() {
  await chat.save(current);
  show();
}

function edit(index, text) {
  const message = current.messages[index];
  if (!text && message.pictures.length === 0 && !message.documents?.length && !message.videos?.length) return;
  byId('question').focus();
  guarded(chat.edit(current, index, text));
}

function open(conversation) {
  current = conversation;
  showMenu(false);
  return current;
}

function openBlank() {
  if (blank.messages.length > 0) blank = newConversation();
  open(blank);
  show();
}

function startNew() {
  openBlank();
  byId('question').focus();
}

function endTour() {
  setTourState('over');
  startNew();
}

async function rename() {
  const conversation = current;
  const name = await ask('Rename the conversation', {label: 'Name', value: conversation.name});
  if (!name?.trim()) return;
  conversation.name = name.trim();
  await chat.save(conversation);
  show();
}

async function remove() {
  const conversation = current;
  if ((await ask(`Delete “${conversation.name}” and its images?`)) === null) return;
  all = all.filter((other) => other !== conversation);
  await chat.remove(conversation);
  tabs.removed(conversation.id);
  startNew();
}

async function exportAsFile() {
  const url = URL.createObjectURL(new Blob([await exported(current, pictures.dataUri)], {type: 'application/json'}));
  const name = current.name.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'conversation';
  el('a', {href: url, download: `${name}.json`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

async function importFiles(files) {
  for (const file of files) {
    current = await addImported(await imported(await file.text(), file.name, {picture: pictureOfUri, document: documentOfUri, video: videoOfUri}));
    all.unshift(current);
    tabs.saved(current.id, false);
  }
  notice('');
  showMenu(false);
  show();
  thread.toEnd();
}

// On narrow screens the list lies over the conversation.
function showMenu(open) {
  byId('conversations').classList.toggle('open', open);
  byId('open-list').setAttribute('aria-expanded', open);
}

async function showModel() {
  try {
    model = await modelFacts();
    const facts = [model.name, model.sees ? 'reads images and text' : 'reads text only', `${model.context.toLocaleString('en')} tokens`];
    byId('model').replaceChildren(...facts.map((fact) => el('span', {}, fact)));
    byId('model-facts').textContent = `${model.name} ${facts[1]}, ${facts[2]} at once.`;
    composer.setModel(model);
    settings.setServer(model.server);
    chat.reuse = model.server.reuse;
    notice('');
    if (current.messages.length === 0) show();
  } catch (error) {
    notice(error.message, error.retry ? showModel : null);
  }
}

function keys(event) {
  const typing = event.target.matches?.('input, textarea, select');
  const inDialog = document.querySelector('dialog[open]') !== null;
  if (inDialog) return;
  if (event.key === 'Escape') {
    if (isRunning(current)) stop();
    else showMenu(false);
  } else if (event.key === '/' && !typing) {
    event.preventDefault();
    byId('question').focus();
  } else if (event.altKey && event.code === 'KeyN') {
    event.preventDefault();
    startNew();
  } else if (event.altKey && event.code === 'KeyL') {
    event.preventDefault();
    live.toggle();
  }
}

async function start() {
  byId('new').addEventListener('click', startNew);
  byId('rename').addEventListener('click', () => guarded(rename()));
  byId('delete').addEventListener('click', () => guarded(remove()));
  byId('export').addEventListener('click', () => guarded(exportAsFile()));
  byId('import').addEventListener('click', () => byId('import-files').click());
  byId('import-files').addEventListener('change', (event) => {
    const files = [...event.target.files];
    event.target.value = '';  // the same file may be picked again
    guarded(importFiles(files));
  });
  byId('open-list').addEventListener('click', () => showMenu(!byId('conversations').classList.contains('open')));
  byId('open-help').addEventListener('click', () => byId('help').showModal());
  byId('search').addEventListener('input', showList);
  byId('take-tour').addEventListener('click', () => {
    byId('help').close();
    setTourState('wanted');
    startNew();
  });
  document.addEventListener('keydown', keys);
  window.addEventListener('pagehide', () => [...chat.running.keys()].forEach((id) => tabs.saved(id, false)));
  const kept = await openStore();
  if (kept) tabs.open();
  all = await loadConversations();
  if (all.length > 0) current = all[0];
  show();
  thread.toEnd();
  byId('question').focus();
  await showModel();
  if (!kept) notice('This browser keeps nothing here: conversations end with the page.');
  document.documentElement.dataset.ready = 'true';
}

start();
