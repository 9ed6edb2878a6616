/** Whether the server answers. A request that it does not answer is made again, later and later, until it does or is given up. */

/** Of a server that was started anew: it has another token, which the address that it printed brings. */
const NOT_LET_IN = 401;
const FIRST_MS = 400;
const GROWTH = 1.7;
const LATEST_MS = 8000;

class Connection {
  /** The server did not answer the last request, or does not know this browser yet. */
  lost = $state(false);

  /** The answer to a request, however often it has to be made. Throws once it is given up. */
  async fetch(address: string, request: RequestInit): Promise<Response> {
    for (let delay = FIRST_MS; ; delay = Math.min(GROWTH * delay, LATEST_MS)) {
      try {
        const answer = await fetch(address, request);
        if (answer.status === NOT_LET_IN) throw new Error("this browser has no token");
        this.lost = false;
        return answer;
      } catch (error) {
        if (request.signal?.aborted) throw error;
        this.lost = true;
        await rest(delay, request.signal ?? undefined);
      }
    }
  }
}

/** Waits, but no longer than the request is wanted. */
function rest(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason as Error);
    });
  });
}

export const connection = new Connection();
