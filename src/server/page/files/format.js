// Figures as people read them.

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i + 1 < units.length; ++i) n /= 1024;
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export const rate = (n) => `${n >= 100 ? Math.round(n) : n.toFixed(1)} tokens/s`;

export const share = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : '–');

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
