/** How far the engine is, for who waits for it. */

class Status {
  /** Seconds that it took to load; undefined before. */
  seconds = $state<number | undefined>();
  failure = $state("");
}

export const status = new Status();
