/** Undo and redo over states. Changes of one control within `JOIN_MS` are one step. */

const JOIN_MS = 800;
const MOST = 300;

export class History<State> {
  #past: State[] = [];
  #future: State[] = [];
  #control = "";
  #time = Number.NEGATIVE_INFINITY;

  /** Notes the state that a change leaves. `control`: what changed it. */
  note(before: State, control: string, now: number): void {
    const joins = control !== "" && control === this.#control && now - this.#time < JOIN_MS;
    this.#control = control;
    this.#time = now;
    this.#future = [];
    if (!joins) this.#past = [...this.#past.slice(1 - MOST), before];
  }

  undo(current: State): State | undefined {
    const found = this.#past.pop();
    if (found !== undefined) this.#future.push(current);
    this.#control = "";
    return found;
  }

  redo(current: State): State | undefined {
    const found = this.#future.pop();
    if (found !== undefined) this.#past.push(current);
    this.#control = "";
    return found;
  }

  get canUndo(): boolean {
    return this.#past.length > 0;
  }

  get canRedo(): boolean {
    return this.#future.length > 0;
  }
}
