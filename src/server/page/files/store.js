// What the browser keeps: conversations, and images byte for byte, in IndexedDB; settings in localStorage.

const kTables = ['conversations', 'pictures'];

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

class Database {
  constructor(db) {
    this.db = db;
  }
  static async open() {
    const request = indexedDB.open('vlcache', 1);
    request.onupgradeneeded = () => {
      for (const table of kTables) request.result.createObjectStore(table, {keyPath: 'id'});
    };
    return new Database(await promised(request));
  }
  table(name, mode = 'readonly') {
    return this.db.transaction(name, mode).objectStore(name);
  }
  get = (table, id) => promised(this.table(table).get(id));
  all = (table) => promised(this.table(table).getAll());
  put = (table, value) => promised(this.table(table, 'readwrite').put(value));
  remove = (table, id) => promised(this.table(table, 'readwrite').delete(id));
}

// Where the browser keeps nothing (a private window, say): as long as the page is open.
class Memory {
  tables = Object.fromEntries(kTables.map((name) => [name, new Map()]));
  get = async (table, id) => this.tables[table].get(id);
  all = async (table) => [...this.tables[table].values()];
  put = async (table, value) => this.tables[table].set(value.id, value);
  remove = async (table, id) => this.tables[table].delete(id);
}

let store = new Memory();

// False: conversations end with the page.
export async function openStore() {
  try {
    store = await Database.open();
    return true;
  } catch {
    return false;
  }
}

export const conversations = {
  all: () => store.all('conversations'),
  get: (id) => store.get('conversations', id),
  put: (conversation) => store.put('conversations', conversation),
  remove: (id) => store.remove('conversations', id),
};

const urls = new Map();  // of images that have been shown

export const pictures = {
  put: (picture) => store.put('pictures', picture),  // {id, name, type, blob, width, height}
  get: (id) => store.get('pictures', id),
  remove(id) {
    URL.revokeObjectURL(urls.get(id));
    urls.delete(id);
    return store.remove('pictures', id);
  },
  // To be shown; null: it was removed.
  async url(id) {
    if (!urls.has(id)) {
      const picture = await store.get('pictures', id);
      if (!picture) return null;
      urls.set(id, URL.createObjectURL(picture.blob));
    }
    return urls.get(id);
  },
  // The bytes as they came: the same image stays the same to the server.
  async dataUri(id) {
    const picture = await store.get('pictures', id);
    if (!picture) throw new Error('An image of this conversation is gone from the browser.');
    const reader = new FileReader();
    reader.readAsDataURL(new Blob([picture.blob], {type: picture.type}));
    return new Promise((resolve, reject) => {
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
    });
  },
};

// crypto.randomUUID is for secure contexts only, which a phone's http://192.168... is not.
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, '0')).join('');
}

const kSettings = 'vlcache-settings';
const kTour = 'vlcache-tour';
const kDefaults = {a: {}, b: {kv: 'draft', budget: '0.1'}, compare: false, system: '', temperature: '', maxTokens: '', topP: '', topK: '', minP: '', seed: '',
  repetition: '', presence: '', frequency: '', shrink: ''};

// A policy's text with present names: vl-cache was vlcache in earlier releases (policy/registry.h, with_present_names).
const presentNames = (kv) => kv?.replace(/(^|\+)vlcache(?=$|[@:+/])/, '$1vl-cache');

export function loadSettings() {
  try {
    const settings = {...kDefaults, ...JSON.parse(localStorage.getItem(kSettings))};
    for (const side of ['a', 'b']) settings[side] = {...settings[side], kv: presentNames(settings[side].kv)};
    return settings;
  } catch {
    return {...kDefaults};
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(kSettings, JSON.stringify(settings));
  } catch {
    // they hold until the page is closed
  }
}

// The tour in this browser: 'over' when it was taken or declined, 'wanted' when it was asked for, else ''.
export function tourState() {
  try {
    return localStorage.getItem(kTour) ?? '';
  } catch {
    return '';
  }
}

export function setTourState(state) {
  try {
    localStorage.setItem(kTour, state);
  } catch {
    // it is offered once more
  }
}
