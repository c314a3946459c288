// Conversations as data, and the answers that are on their way. Knows nothing of how they are shown.
import {ApiError, streamChat} from './api.js';
import {conversations, newId, pictures} from './store.js';

// A conversation: {id, name, created, updated, messages}. Messages alternate:
//   {role: 'user', text, pictures: [{id, name, width, height}]}
//   {role: 'assistant', answers: [answer]}: one, or two side by side, of which each goes on with its own.
// An answer: {label, asked, pictures: [id of each in its prompt], text, state, error, retry, finish, usage, served,
//   seen: {first, total}} with state running, done, stopped or failed; times as this page saw them, in ms.

const kSaveEvery = 2000;  // ms, while an answer grows

export const newConversation = () => ({id: newId(), name: '', created: Date.now(), updated: Date.now(), messages: []});

const pictureIds = (conversation) =>
  conversation.messages.flatMap((message) => (message.pictures ?? []).map((picture) => picture.id));

function labelOf(side) {
  return [side.kv, side.budget, side.reuse && `reuse ${side.reuse}`].filter(Boolean).join(' ') || 'as the server is set';
}

function newAnswer(side) {
  return {label: labelOf(side), asked: side, pictures: [], text: '', state: 'running', error: '', retry: false,
    finish: '', usage: null, served: null, seen: {first: null, total: null}};
}

// What of the messages before `end` the model is to see in one side's answer: questions without a word of an answer
// are left out, but for the last one.
function history(conversation, end, number) {
  const turns = [];
  for (let i = 0; i < end; i += 2) {
    const question = conversation.messages[i];
    if (i + 1 >= end) {
      turns.push(question);
      continue;
    }
    const answers = conversation.messages[i + 1].answers;
    const answer = answers[Math.min(number, answers.length - 1)];
    if (answer.text || answer.state === 'done') turns.push(question, {role: 'assistant', text: answer.text});
  }
  return turns;
}

async function contentOf(message) {
  if (!message.pictures?.length) return message.text;
  const parts = [];
  for (const {id} of message.pictures) {
    parts.push({type: 'image_url', image_url: {url: await pictures.dataUri(id)}});
  }
  return [...parts, {type: 'text', text: message.text}];
}

async function requestBody(turns, side, settings) {
  const messages = settings.system ? [{role: 'system', content: settings.system}] : [];
  for (const turn of turns) messages.push({role: turn.role, content: await contentOf(turn)});
  const vlcache = {explain: true};
  if (side.kv) vlcache.kv = side.kv;
  if (side.budget) vlcache.kv_budget = side.budget;
  if (side.reuse) vlcache.reuse = side.reuse;
  const body = {messages, stream: true, stream_options: {include_usage: true}, vlcache};
  if (settings.temperature !== '') body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== '') body.max_tokens = Number(settings.maxTokens);
  return body;
}

export class Chat {
  // `changed(conversation, answer)`: an answer has grown or ended; answer null: several things have. `unsaved(error)`:
  // the browser does not keep what is said.
  constructor(settings, changed, unsaved) {
    this.settings = settings;
    this.changed = changed;
    this.unsaved = unsaved;
    this.running = new Map();  // id of a conversation: the AbortController of its answers
  }

  isRunning = (conversation) => this.running.has(conversation.id);

  stop = (conversation) => this.running.get(conversation.id)?.abort();

  // A new question after all others.
  async ask(conversation, text, attached) {
    for (const picture of attached) await pictures.put(picture);
    const shown = attached.map(({id, name, width, height}) => ({id, name, width, height}));
    conversation.messages.push({role: 'user', text, pictures: shown});
    if (!conversation.name) conversation.name = text.slice(0, 60) || 'A picture';
    return this.answer(conversation);
  }

  // The last question once more.
  regenerate(conversation) {
    if (conversation.messages.at(-1).role === 'assistant') conversation.messages.pop();
    return this.answer(conversation);
  }

  // Another text for the question at `index`; what came after it is forgotten.
  async edit(conversation, index, text) {
    const before = pictureIds(conversation);
    conversation.messages.length = index + 1;
    conversation.messages[index].text = text;
    const after = new Set(pictureIds(conversation));
    for (const id of before.filter((id) => !after.has(id))) await pictures.remove(id);
    return this.answer(conversation);
  }

  // Answers the last question; resolves when that is done, however it ends.
  async answer(conversation) {
    const settings = structuredClone(this.settings);
    const sides = settings.compare ? [settings.a, settings.b] : [settings.a];
    const message = {role: 'assistant', answers: sides.map(newAnswer)};
    conversation.messages.push(message);
    const controller = new AbortController();
    this.running.set(conversation.id, controller);
    this.changed(conversation, null);
    const save = () => this.save(conversation).catch(this.unsaved);
    await save();
    const timer = setInterval(save, kSaveEvery);
    await Promise.all(message.answers.map((answer, i) => this.run(conversation, answer, i, settings, controller.signal)));
    clearInterval(timer);
    this.running.delete(conversation.id);
    await save();
    this.changed(conversation, null);
  }

  async run(conversation, answer, number, settings, signal) {
    const begin = performance.now();
    try {
      const turns = history(conversation, conversation.messages.length - 1, number);
      answer.pictures = turns.flatMap((turn) => (turn.pictures ?? []).map((picture) => picture.id));
      for await (const event of streamChat(await requestBody(turns, answer.asked, settings), signal)) {
        this.take(answer, event, performance.now() - begin);
        this.changed(conversation, answer);
      }
      answer.state = 'done';
    } catch (error) {
      answer.state = error.name === 'AbortError' ? 'stopped' : 'failed';
      if (answer.state === 'failed') answer.error = error.message;
      answer.retry = error instanceof ApiError && error.retry;
    }
    answer.seen.total = performance.now() - begin;
    this.changed(conversation, answer);
  }

  take(answer, event, ms) {
    if (event.usage) answer.usage = event.usage;
    if (event.vlcache) answer.served = event.vlcache;
    for (const choice of event.choices) {
      if (choice.delta.content) {
        answer.seen.first ??= ms;
        answer.text += choice.delta.content;
      }
      if (choice.finish_reason) answer.finish = choice.finish_reason;
    }
  }

  async save(conversation) {
    conversation.updated = Date.now();
    if (!conversation.deleted) await conversations.put(conversation);
  }

  async remove(conversation) {
    conversation.deleted = true;
    this.stop(conversation);
    for (const id of pictureIds(conversation)) await pictures.remove(id);
    await conversations.remove(conversation.id);
  }
}

// All there are, the latest first. Answers that were growing when the page was closed have been stopped by that.
export async function loadConversations() {
  const all = await conversations.all();
  for (const message of all.flatMap((conversation) => conversation.messages)) {
    for (const answer of message.answers ?? []) {
      if (answer.state === 'running') answer.state = 'stopped';
    }
  }
  return all.sort((a, b) => b.updated - a.updated);
}
