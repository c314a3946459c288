// The server's API: one place that knows its paths, its key and how it says that something went wrong.
import {ask} from './dom.js';
import {inWords} from './words.js';

const base = new URL('../', import.meta.url);
const kKeyName = 'vlcache-key';  // of this tab's session, never longer

// `retry`: the same request may succeed later.
export class ApiError extends Error {
  constructor(message, {status = 0, retry = false} = {}) {
    super(message);
    this.status = status;
    this.retry = retry;
  }
}

let asking = null;  // one dialog, however many requests were refused

async function askForKey(refusedKey) {
  if (sessionStorage.getItem(kKeyName) !== refusedKey) return true;  // another request has been told meanwhile
  const error = refusedKey ? 'The server does not accept this key.' : '';
  asking ??= ask('This server wants a key', {label: 'API key', value: '', type: 'password', error});
  const key = await asking;
  asking = null;
  if (!key) return false;
  sessionStorage.setItem(kKeyName, key);
  return true;
}

async function errorOf(response) {
  let message = '';
  try {
    message = (await response.json()).error.message;
  } catch {
    message = `The server answered ${response.status}.`;
  }
  const retry = response.status === 429 || response.status >= 500;
  const after = response.headers.get('retry-after');
  message = inWords(message);
  if (after) message += `${/[.!?]$/.test(message) ? '' : '.'} Try again in ${after} s.`;
  return new ApiError(message, {status: response.status, retry});
}

// `mayAsk`: whether the user can be asked for a key.
async function call(path, options = {}, mayAsk = true) {
  for (;;) {
    const key = sessionStorage.getItem(kKeyName);
    const headers = {...options.headers, ...(key ? {authorization: `Bearer ${key}`} : {})};
    let response;
    try {
      response = await fetch(new URL(path, base), {...options, headers});
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('The server does not answer. Is it running?', {retry: true});
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || !mayAsk || !(await askForKey(key))) throw error;
  }
}

// {name, sees, watches, context, mostPixels, server}: the model's name, whether it reads images and clips, how many tokens it can attend to, how
// many pixels an image may have, and {kv, budget, reuse} of requests that leave them out.
export async function modelFacts() {
  const props = await (await call('props')).json();
  const {n_ctx: context} = props.default_generation_settings, {kv = '', kv_budget: budget = '', reuse = ''} = props.vlcache ?? {};
  return {name: props.model_alias, sees: props.modalities.vision, watches: props.modalities.video, context, mostPixels: props.limits.image_pixels,
    server: {kv, budget, reuse}};
}

// The fields of a side of the settings in a request.
export const sideFields = ({kv, budget, reuse}) => ({...(kv ? {kv} : {}), ...(budget ? {kv_budget: budget} : {}), ...(reuse ? {reuse} : {})});

// Why the server would refuse such a side; '': it would not; null: it did not say.
export async function sideError(side, signal) {
  const body = JSON.stringify({messages: [{role: 'user', content: '?'}], vlcache: sideFields(side)});
  try {
    await call('v1/messages/count_tokens', {method: 'POST', headers: {'content-type': 'application/json'}, body, signal}, false);
    return '';
  } catch (error) {
    return error.status === 400 ? error.message : null;
  }
}

// Tokens of a text alone, without the template's.
export async function countTokens(text, signal) {
  const body = JSON.stringify({prompt: text, add_special_tokens: false});
  return (await (await call('tokenize', {method: 'POST', headers: {'content-type': 'application/json'}, body, signal}, false)).json()).count;
}

export const cacheStats = async (signal) => (await call('v1/cache/stats', {signal}, false)).json();

export const demoPicture = async () => (await call('page/demo.png')).blob();

export const policies = async () => (await call('page/policies.json')).json();

// The events of a streamed answer, parsed. Throws ApiError, also where the stream ends before the answer does.
export async function* streamChat(body, signal) {
  const request = {method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(body), signal};
  const response = await call('v1/chat/completions', request);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read().catch((error) => {
      if (error.name === 'AbortError') throw error;
      return {done: true};
    });
    if (done) throw new ApiError('The connection ended before the answer did.', {retry: true});
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;  // a comment: it is still there
      const data = event.slice(6);
      if (data === '[DONE]') return;
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(inWords(json.error.message), {retry: json.error.type === 'server_error'});
      yield json;
    }
  }
}
