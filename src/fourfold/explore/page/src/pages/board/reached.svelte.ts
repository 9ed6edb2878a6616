/** Goals of all parts of the Board that this browser has reached. */

const KEY = "fourfold-board-goals";

/** Goals that were reached in this browser, by their names. */
class Reached {
  names = $state.raw<ReadonlySet<string>>(new Set(kept()));

  note(names: readonly string[]): void {
    if (names.every((name) => this.names.has(name))) return;
    this.names = new Set([...this.names, ...names]);
    try {
      localStorage.setItem(KEY, JSON.stringify([...this.names]));
    } catch {
      // it is known for as long as the page is open
    }
  }
}

function kept(): string[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

export const reached = new Reached();
