/** The clock of all that plays: it moves a place from where it stands to the last one, step by step or with every frame. */

export interface Track {
  at: number;
  last: number;
  go: (to: number) => void;
  /** Milliseconds from one move to the next; 0: with every frame. */
  every: number;
  /** How far a move goes after so many milliseconds. */
  stride: (milliseconds: number) => number;
}

export class Clock {
  playing = $state(false);
  #track: () => Track;

  /** Make it where a component begins: it stops when that one goes. */
  constructor(track: () => Track) {
    this.#track = track;
    $effect(() => {
      if (!this.playing) return;
      const { at, last, go, every, stride } = track(); // read here, so that each move begins the next
      const before = performance.now();
      const move = (): void => {
        const to = Math.min(last, at + stride(performance.now() - before));
        if (to >= last) this.playing = false;
        go(to);
      };
      const waiting = every > 0 ? setTimeout(move, every) : requestAnimationFrame(move);
      return () => (every > 0 ? clearTimeout(waiting as number) : cancelAnimationFrame(waiting as number));
    });
  }

  /** Plays on, from the start where the end is reached; or stops. */
  toggle(): void {
    const { at, last, go } = this.#track();
    if (!this.playing && at >= last) go(0);
    this.playing = !this.playing;
  }

  /** Goes somewhere by hand, which stops it. */
  to(place: number): void {
    const { last, go } = this.#track();
    this.playing = false;
    go(Math.min(last, Math.max(0, place)));
  }
}
