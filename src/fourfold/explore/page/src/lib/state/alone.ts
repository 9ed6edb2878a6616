/** `?embed=FIGURE` before the `#` of an address: the page shows that figure alone, in the state that the address holds. */

const KEY = "embed";

/** The name of the figure that is shown alone; undefined: the whole page. */
export const alone: string | undefined =
  typeof location === "undefined" ? undefined : (new URLSearchParams(location.search).get(KEY) ?? undefined);

/** The address of a figure alone, in the state of the page now. */
export function addressAlone(name: string): string {
  const address = new URL(location.href);
  address.search = `?${KEY}=${encodeURIComponent(name)}`;
  return address.href;
}

/** What another page takes in to show the figure. */
export function frameText(name: string, title: string): string {
  const frame = document.createElement("iframe");
  frame.src = addressAlone(name);
  frame.title = title;
  frame.width = "720";
  frame.height = "480";
  frame.loading = "lazy";
  frame.style.border = "0";
  return `${frame.outerHTML}\n`;
}
