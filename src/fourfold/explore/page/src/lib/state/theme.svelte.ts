/** Dark or light: the system's, until the person chooses. */

const KEY = "fourfold-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  #chosen = $state(stored());
  #dark = $state(system.matches);

  constructor() {
    system.addEventListener("change", () => {
      this.#dark = system.matches;
      this.apply();
    });
  }

  get isDark(): boolean {
    return this.#chosen === null ? this.#dark : this.#chosen === "dark";
  }

  toggle(): void {
    this.#chosen = this.isDark ? "light" : "dark";
    try {
      localStorage.setItem(KEY, this.#chosen);
    } catch {
      // a private window keeps nothing
    }
    this.apply();
  }

  apply(): void {
    document.documentElement.dataset.theme = this.isDark ? "dark" : "light";
  }
}

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export const theme = new Theme();
