/** Documents that a saved page holds as text: such a page asks no server. */

const elements =
  typeof document === "undefined"
    ? []
    : [...document.querySelectorAll<HTMLScriptElement>("script[data-document]")];

/** Whether this page is a file that holds its documents. */
export const isFile = elements.length > 0;

/** A document of this file, read when it is asked for. */
export function embedded(name: string): unknown {
  const found = elements.find((element) => element.dataset.document === name);
  return found ? JSON.parse(found.textContent ?? "") : undefined;
}
