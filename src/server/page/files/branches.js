// Versions of a conversation: an edited question begins another one, and the messages after the old one stay.
// `conversation.messages` is the version that is shown; `conversation.forks` has, by the place where versions part, {current,
// tails}: tails[current] is null, the others are {messages, forks} from that place on.

const forksFrom = (forks, at, more) => Object.entries(forks ?? {}).filter(([place]) => Number(place) >= at + more);

function cutOff(conversation, at) {
  const forks = forksFrom(conversation.forks, at, 1);
  for (const [place] of forks) delete conversation.forks[place];
  return {messages: conversation.messages.splice(at), forks: Object.fromEntries(forks)};
}

// A new version from message `at` on, that message being `first`.
export function fork(conversation, at, first) {
  conversation.forks ??= {};
  const old = cutOff(conversation, at);
  const here = (conversation.forks[at] ??= {current: 0, tails: [null]});
  here.tails[here.current] = old;
  here.current = here.tails.push(null) - 1;
  conversation.messages.push(first);
}

// {current, count} of the versions that part at message `at`; null: there is one.
export function versions(conversation, at) {
  const here = conversation.forks?.[at];
  return here ? {current: here.current, count: here.tails.length} : null;
}

// Shows version `number` of the versions that part at message `at`.
export function show(conversation, at, number) {
  const here = conversation.forks[at];
  if (number === here.current) return;
  here.tails[here.current] = cutOff(conversation, at);
  const next = here.tails[number];
  here.tails[number] = null;
  here.current = number;
  conversation.messages.push(...next.messages);
  Object.assign(conversation.forks, next.forks);
}

// The messages of all versions.
export function allMessages({messages, forks}) {
  const tails = Object.values(forks ?? {}).flatMap((here) => here.tails.filter(Boolean));
  return [...messages, ...tails.flatMap(allMessages)];
}
