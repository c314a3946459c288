// A conversation as a file that says everything, pictures included, and back.
import {readPicture} from './pictures.js';
import {conversations, newId, pictures} from './store.js';

export async function exported(conversation) {
  const messages = [];
  for (const message of conversation.messages) {
    const files = [];
    for (const picture of message.pictures ?? []) files.push({...picture, url: await pictures.dataUri(picture.id)});
    messages.push(message.pictures ? {...message, pictures: files} : message);
  }
  return JSON.stringify({...conversation, messages}, null, 1);
}

// What cards read of an answer: a file may have been changed by hand.
const isNumber = (value) => typeof value === 'number';
const isString = (value) => typeof value === 'string';
const maybe = (isRight) => (value) => value === undefined || value === null || isRight(value);
const listOf = (isRight) => (value) => Array.isArray(value) && value.every((element) => isRight(element));
const objectOf = (fields) => (value) =>
  typeof value === 'object' && value !== null && Object.entries(fields).every(([name, isRight]) => isRight(value[name]));

const isUsage = objectOf({
  prompt_tokens: isNumber, completion_tokens: isNumber, prompt_tokens_details: objectOf({cached_tokens: isNumber}),
});
const isShown = objectOf({width: isNumber, height: isNumber, kept: listOf(isNumber), rects: listOf(maybe(listOf(isNumber)))});
const isTooLarge = objectOf({width: isNumber, height: isNumber, kept: (value) => value === undefined});
const isServed = objectOf({
  timings_ms: objectOf(Object.fromEntries(['queue', 'ttft', 'vision', 'prefill', 'compress', 'decode'].map((time) => [time, isNumber]))),
  kv: objectOf({
    mode: isString, bytes: isNumber, peak_bytes: isNumber, prompt_bytes: isNumber, slots: maybe(listOf(listOf(isNumber))),
    images: maybe(listOf((image) => isShown(image) || isTooLarge(image))),
  }),
  cache: objectOf({
    prefix_tokens: isNumber, images: listOf(objectOf({n_tokens: isNumber, recomputed_tokens: isNumber, source: isString, encoder: isString})),
  }),
});

const string = (value) => (isString(value) ? value : '');
const number = (value) => (isNumber(value) ? value : null);

function answerOf(file, newIds) {
  const explained = isUsage(file.usage) && isServed(file.served);
  return {
    label: string(file.label),
    asked: {kv: string(file.asked?.kv), budget: string(file.asked?.budget), reuse: string(file.asked?.reuse)},
    pictures: (file.pictures ?? []).map((id) => newIds.get(id)).filter(Boolean),
    text: string(file.text),
    state: ['done', 'failed'].includes(file.state) ? file.state : 'stopped',
    error: string(file.error),
    retry: file.retry === true,
    finish: string(file.finish),
    usage: explained ? file.usage : null,
    served: explained ? file.served : null,
    seen: {first: number(file.seen?.first), total: number(file.seen?.total)},
  };
}

async function pictureOf({name, url}) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (c) => c.charCodeAt(0));
  return readPicture(new File([bytes], string(name)), '');
}

// `files`: where its pictures go.
async function messagesOf(file, files) {
  const newIds = new Map();  // of pictures: a conversation that is imported twice is two
  const messages = [];
  for (const [i, message] of file.messages.entries()) {
    if (message.role !== (i % 2 === 0 ? 'user' : 'assistant')) throw new Error('messages do not alternate');
    if (message.role === 'assistant') {
      if (message.answers.length === 0) throw new Error('an answer is missing');
      messages.push({role: 'assistant', answers: message.answers.map((answer) => answerOf(answer, newIds))});
      continue;
    }
    const shown = [];
    for (const picture of message.pictures ?? []) {
      const read = await pictureOf(picture);
      files.push(read);
      newIds.set(picture.id, read.id);
      shown.push({id: read.id, name: read.name, width: read.width, height: read.height});
    }
    messages.push({role: 'user', text: string(message.text), pictures: shown});
  }
  if (messages.length === 0) throw new Error('there is no message');
  return messages;
}

// The conversation of a File, kept by this browser as a new one. Throws an Error that says why not; nothing is kept then.
export async function imported(file) {
  const files = [];
  let conversation;
  try {
    const content = JSON.parse(await file.text());
    conversation = {id: newId(), name: string(content.name) || file.name, created: Date.now(), updated: Date.now(),
      messages: await messagesOf(content, files)};
  } catch (error) {
    throw new Error(`${file.name} is no conversation that this page has exported: ${error.message}`);
  }
  for (const picture of files) await pictures.put(picture);
  await conversations.put(conversation);
  return conversation;
}
