// Finds conversations by their texts.

const kAround = 30;  // characters beside a match

const textsOf = (message) => [message.text, ...(message.answers ?? []).map((answer) => answer.text)].filter(Boolean);

// Where `words` stand in a conversation: {index: of the message or null for the name, snippet}; null: nowhere.
export function found(conversation, words) {
  const sought = words.trim().toLowerCase();
  if (conversation.name.toLowerCase().includes(sought)) return {index: null, snippet: ''};
  for (const [index, message] of conversation.messages.entries()) {
    for (const text of textsOf(message)) {
      const at = text.toLowerCase().indexOf(sought);
      if (at < 0) continue;
      const begin = Math.max(0, at - kAround), end = at + sought.length + kAround;
      const snippet = (begin > 0 ? '…' : '') + text.slice(begin, end).replace(/\s+/g, ' ') + (end < text.length ? '…' : '');
      return {index, snippet};
    }
  }
  return null;
}
