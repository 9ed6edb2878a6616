/** Scrolling to a figure of a page whose parts come one after the other. */

const ACTS = ["wheel", "pointerdown", "keydown", "touchstart"] as const;

/** Scrolls to a figure, and again whenever what stands above it grows, until the person acts. Returns what ends it. */
export function heldInView(figure: HTMLElement): () => void {
  const put = (): void => figure.scrollIntoView({ block: "start", behavior: "instant" });
  const observer = new ResizeObserver(put);
  const end = (): void => {
    observer.disconnect();
    for (const act of ACTS) removeEventListener(act, end);
  };
  observer.observe(document.body);
  for (const act of ACTS) addEventListener(act, end, { passive: true });
  put();
  return end;
}
