// Tabs of one browser share conversations: each tells the others when it saves, removes or stops one.

export class Tabs {
  // `heard`: {saved(id, running), removed(id), stop(id)}, of another tab; running: it still answers there.
  constructor(heard) {
    this.heard = heard;
    this.channel = null;
  }

  // Before that, or in a browser without such channels, a tab is alone.
  open() {
    if (!globalThis.BroadcastChannel) return;
    this.channel = new BroadcastChannel('vlcache');
    this.channel.onmessage = ({data: {kind, id, running}}) => this.heard[kind]?.(id, running);
  }

  saved = (id, running) => this.channel?.postMessage({kind: 'saved', id, running});

  removed = (id) => this.channel?.postMessage({kind: 'removed', id});

  // The tab that answers in a conversation is to stop.
  stop = (id) => this.channel?.postMessage({kind: 'stop', id});
}
