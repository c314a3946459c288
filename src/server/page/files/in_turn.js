// Work that measures time, one at a time among the tabs of a browser: other work would slow it.

// Runs `work` when no other tab runs such work; after `signal` is aborted at once.
export async function inTurn(work, signal) {
  if (!navigator.locks) return work();  // browsers have them for https and for this computer's own addresses
  let begun = false;
  const begin = () => {
    begun = true;
    return work();
  };
  try {
    return await navigator.locks.request('vlcache-comparison', {signal}, begin);
  } catch (error) {
    if (begun || error.name !== 'AbortError') throw error;
    return work();
  }
}
