// Conversations as data, and the answers that are on their way. Knows nothing of how they are shown.
import {ApiError, sideFields, streamChat} from './api.js';
import {allMessages, fork} from './branches.js';
import {readingFields} from './comparing.js';
import {inTurn} from './in_turn.js';
import {conversations, newId, pictures} from './store.js';
import {titleOf} from './title.js';
import {frameChoice} from './videos.js';

// A conversation: {id, name, created, updated, messages, forks (branches.js), tour (tour.js)}. Messages alternate:
//   {role: 'user', text, pictures: [{id, name, width, height}], documents: [{id, name, pages}],
//    videos: [{id, name, seconds, fps, max_frames}], files: [{name, text}]}
//   {role: 'assistant', answers: [answer]}: one, or two side by side, each of which continues with its own.
// An answer: {label, asked, sent (the request without its messages, and the system message), pictures: [id of each in
//   its prompt; none where pages of PDFs or frames of clips are images there, too], thought, text, state, error, retry, finish, usage, served, seen: {first, total}, begun, progress,
//   alone, reading} with state running, done, stopped or failed; times as this page saw them, in ms; begun: null while it waits for
//   the other side; progress as of readingState, while a prompt is read; alone: neither side ran beside it; reading: {ms, found} of
//   the request that read the question for both sides, found being tokens that were in the cache; null: none did.

const kSaveEvery = 2000;  // ms, while an answer grows

export const newConversation = () => ({id: newId(), name: '', created: Date.now(), updated: Date.now(), messages: []});

const pictureIds = (conversation) =>
  allMessages(conversation).flatMap((message) => [...(message.documents ?? []), ...(message.videos ?? []), ...(message.pictures ?? [])].map((picture) => picture.id));

function labelOf(side) {
  return side.name || [side.kv, side.budget, side.reuse && `reuse ${side.reuse}`].filter(Boolean).join(' ') || 'the server’s settings';
}

function newAnswer(side) {
  return {label: labelOf(side), asked: side, sent: null, pictures: [], thought: '', text: '', state: 'running', error: '', retry: false,
    finish: '', usage: null, served: null, seen: {first: null, total: null}, begun: null, progress: null, alone: false, reading: null};
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

// A text file stands in the question as its name and its text.
const textOf = (message) => [...(message.files ?? []).map((file) => `${file.name}:\n\n${file.text.trimEnd()}\n`), message.text].join('\n');

async function contentOf(message, urlOf) {
  const {documents = [], videos = []} = message;
  if (!message.pictures?.length && !documents.length && !videos.length) return textOf(message);
  const parts = [];
  for (const {id, name, pages} of documents) {
    parts.push({type: 'file', file: {filename: name, file_data: await urlOf(id)}, ...(pages ? {vlcache: {pages}} : {})});
  }
  for (const video of videos) parts.push({type: 'video_url', video_url: {url: await urlOf(video.id)}, ...frameChoice(video)});
  for (const {id} of message.pictures ?? []) parts.push({type: 'image_url', image_url: {url: await urlOf(id)}});
  return [...parts, {type: 'text', text: textOf(message)}];
}

async function messagesOf(turns, system, urlOf) {
  const messages = system ? [{role: 'system', content: system}] : [];
  for (const turn of turns) messages.push({role: turn.role, content: await contentOf(turn, urlOf)});
  return messages;
}

const sentMessages = (turns, system) => messagesOf(turns, system, pictures.dataUri);

// Settings and their names in a request.
const kSampling = {temperature: 'temperature', maxTokens: 'max_tokens', topP: 'top_p', topK: 'top_k', minP: 'min_p', seed: 'seed',
  repetition: 'repetition_penalty', presence: 'presence_penalty', frequency: 'frequency_penalty'};

// A request without its messages.
function fieldsOf(conversation, side, settings) {
  const body = {stream: true, stream_options: {include_usage: true}, return_progress: true, vlcache: {explain: true, ...sideFields(side)}};
  for (const [setting, name] of Object.entries(kSampling)) {
    if ((settings[setting] ?? '') !== '') body[name] = Number(settings[setting]);
  }
  return {...body, ...conversation.tour?.fields};
}

// The request of an answer, messages included, with images cut short: for people to read.
export async function requestShown(conversation, index, number) {
  const answer = conversation.messages[index].answers[number];
  const {system, fields} = answer.sent ?? {system: '', fields: {}};
  const short = async (id) => `${(await pictures.dataUri(id)).slice(0, 48)}…`;
  return {messages: await messagesOf(history(conversation, index, number), system, short), ...fields};
}

export class Chat {
  // `changed(conversation, answer)`: an answer has grown or ended; answer null: several things have. `saved(conversation)`: the
  // browser stores it as it is; `unsaved(error)`: it does not.
  constructor(settings, {changed, saved, unsaved}) {
    this.settings = settings;
    this.changed = changed;
    this.saved = saved;
    this.unsaved = unsaved;
    this.running = new Map();  // id of a conversation: the AbortController of its answers
    this.reuse = '';           // the server's setting of reuse; '': not known
  }

  isRunning = (conversation) => this.running.has(conversation.id);

  stop = (conversation) => this.running.get(conversation.id)?.abort();

  // A new question after all others, with images as readPicture gives them, documents as readDocument does, videos as readVideo does and files {name, text}. `sides`: as in the
  // settings, how it is asked; by default as they say.
  async ask(conversation, text, {attached = [], documents = [], videos = [], files = [], sides = null} = {}) {
    for (const picture of [...attached, ...documents, ...videos]) await pictures.put(picture);
    const shown = attached.map(({id, name, width, height}) => ({id, name, width, height}));
    const named = documents.map(({id, name, pages}) => ({id, name, pages}));
    const clips = videos.map(({id, name, seconds, fps, max_frames}) => ({id, name, seconds, fps, max_frames}));
    conversation.messages.push({role: 'user', text, pictures: shown, documents: named, videos: clips, files});
    if (!conversation.name) conversation.name = titleOf(text) || files[0]?.name || documents[0]?.name || videos[0]?.name || 'An image';
    return this.answer(conversation, sides);
  }

  // The last question once more.
  regenerate(conversation) {
    const last = conversation.messages.at(-1);
    if (last.role === 'assistant') conversation.messages.pop();
    return this.answer(conversation, conversation.tour && last.answers ? last.answers.map((answer) => answer.asked) : null);
  }

  // Another text for the question at `index`: a new version of the conversation from there on.
  edit(conversation, index, text) {
    fork(conversation, index, {...conversation.messages[index], text});
    return this.answer(conversation);
  }

  // Answers the last question; resolves when that is done, however it ends.
  async answer(conversation, asked = null) {
    const settings = structuredClone(this.settings);
    const sides = asked ?? (settings.compare ? [settings.a, settings.b] : [settings.a]);
    const message = {role: 'assistant', answers: sides.map(newAnswer)};
    if (sides.length === 1) message.answers[0].begun = performance.now();  // it waits for no other
    conversation.messages.push(message);
    const controller = new AbortController();
    this.running.set(conversation.id, controller);
    this.changed(conversation, null);
    const save = () => this.save(conversation).catch(this.unsaved);
    await save();
    const timer = setInterval(save, kSaveEvery);
    if (sides.length > 1) await inTurn(() => this.compare(conversation, message.answers, settings, controller.signal), controller.signal);
    else await this.run(conversation, message.answers[0], 0, settings, controller.signal);
    clearInterval(timer);
    this.running.delete(conversation.id);
    await save();
    this.changed(conversation, null);
  }

  // One side after the other, so that neither slows the other, and both with the question in the cache.
  async compare(conversation, answers, settings, signal) {
    try {
      await this.readForAll(conversation, answers, settings, signal);
    } catch {
      // each side says itself why it cannot be asked
    }
    for (const [i, answer] of answers.entries()) {
      await this.run(conversation, answer, i, settings, signal);
      answer.alone = true;
    }
  }

  // Sides whose earlier answers differ have a question each. The first answer shows how far they have been read.
  async readForAll(conversation, answers, settings, signal) {
    const fields = readingFields(answers.map((answer) => fieldsOf(conversation, answer.asked, settings)), this.reuse);
    if (!fields) return;
    const [shown] = answers, read = new Set();
    for (const i of answers.keys()) {
      const turns = history(conversation, conversation.messages.length - 1, i), key = JSON.stringify(turns);
      if (read.has(key)) continue;
      read.add(key);
      const begin = (shown.begun = performance.now()), side = newAnswer({});
      const messages = await sentMessages(turns, settings.system);
      for await (const event of streamChat({messages, ...fields}, signal)) {
        this.take(side, event, performance.now() - begin);
        shown.progress = side.progress;
        this.changed(conversation, shown);
      }
      if (i === 0) shown.reading = {ms: performance.now() - begin, found: side.usage?.prompt_tokens_details?.cached_tokens ?? 0};
    }
  }

  async run(conversation, answer, number, settings, signal) {
    Object.assign(answer, {begun: performance.now(), progress: null});
    try {
      const turns = history(conversation, conversation.messages.length - 1, number);
      if (turns.every((turn) => !turn.documents?.length && !turn.videos?.length)) answer.pictures = turns.flatMap((turn) => (turn.pictures ?? []).map((picture) => picture.id));
      answer.sent = {system: settings.system, fields: fieldsOf(conversation, answer.asked, settings)};
      const messages = await sentMessages(turns, settings.system);
      answer.begun = performance.now();
      for await (const event of streamChat({messages, ...answer.sent.fields}, signal)) {
        this.take(answer, event, performance.now() - answer.begun);
        this.changed(conversation, answer);
      }
      answer.state = 'done';
    } catch (error) {
      answer.state = error.name === 'AbortError' ? 'stopped' : 'failed';
      if (answer.state === 'failed') answer.error = error.message;
      answer.retry = error instanceof ApiError && error.retry;
    }
    answer.seen.total = performance.now() - answer.begun;
    answer.progress = null;
    this.changed(conversation, answer);
  }

  take(answer, event, ms) {
    if (event.usage) answer.usage = event.usage;
    if (event.vlcache) answer.served = event.vlcache;
    if (event.vlcache_progress) {
      const {share, seconds_left: left, waiting = false} = event.vlcache_progress;
      answer.progress = {share, left, waiting, ms};
    }
    for (const choice of event.choices) {
      const {content, reasoning_content: thought} = choice.delta;
      if (content || thought) answer.seen.first ??= ms;
      answer.thought += thought ?? '';
      answer.text += content ?? '';
      if (choice.finish_reason) answer.finish = choice.finish_reason;
    }
  }

  async save(conversation) {
    conversation.updated = Date.now();
    if (conversation.deleted) return;
    await conversations.put(conversation);
    this.saved(conversation);
  }

  // It is no longer stored, whatever comes of its answers.
  forget(conversation) {
    conversation.deleted = true;
    this.stop(conversation);
  }

  async remove(conversation) {
    this.forget(conversation);
    for (const id of pictureIds(conversation)) await pictures.remove(id);
    await conversations.remove(conversation.id);
  }
}

// Keeps a conversation that came from a file: {name, messages, pictures} as `imported` gives it.
export async function addImported({name, messages, pictures: read}) {
  const conversation = {...newConversation(), name, messages};
  for (const picture of read) await pictures.put(picture);
  await conversations.put(conversation);
  return conversation;
}

const growing = (conversation) => allMessages(conversation).flatMap((message) => message.answers ?? []).filter(({state}) => state === 'running');

// Marks answers that were growing as stopped.
export function endAnswers(conversation) {
  for (const answer of growing(conversation)) answer.state = 'stopped';
}

// All there are, the latest first.
export async function loadConversations() {
  const all = await conversations.all();
  all.forEach(endAnswers);
  return all.sort((a, b) => b.updated - a.updated);
}

// A conversation as another tab has stored it; undefined: it was deleted. `running`: that tab still answers in it.
export async function storedConversation(id, running) {
  const conversation = await conversations.get(id);
  if (conversation && !running) endAnswers(conversation);
  if (conversation) growing(conversation).forEach((answer) => Object.assign(answer, {begun: performance.now(), progress: null}));  // that tab has another clock
  return conversation;
}
