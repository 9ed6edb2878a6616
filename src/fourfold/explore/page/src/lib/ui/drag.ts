/** A pointer that was put down on something, until it is lifted: it drags, or chooses. */

interface Dragged {
  /** Pixels that it moves before it drags. */
  far: number;
  /** Whether it may drag now; always where left out. */
  may?: () => boolean;
  /** At each move while it drags. */
  moves: (event: PointerEvent) => void;
  /** Once, at the end. `acts`: it was lifted; false where it was cancelled, by Escape too. */
  ends: (acts: boolean) => void;
}

/** Call it where the pointer goes down; other buttons than the first are left alone. */
export function followPointer(down: PointerEvent, { far, may = () => true, moves, ends }: Dragged): void {
  if (down.button !== 0) return;
  let drags = false;
  const follow = (now: PointerEvent): void => {
    if (!may()) return;
    if (!drags && Math.hypot(now.clientX - down.clientX, now.clientY - down.clientY) < far) return;
    drags = true;
    now.preventDefault();
    moves(now);
  };
  const end = (acts: boolean): void => {
    removeEventListener("pointermove", follow);
    removeEventListener("pointerup", lift);
    removeEventListener("pointercancel", cancel);
    removeEventListener("keydown", giveUp, true);
    ends(acts);
  };
  const lift = (): void => end(true);
  const cancel = (): void => end(false);
  const giveUp = (pressed: KeyboardEvent): void => {
    if (pressed.key === "Escape") end(false);
  };
  addEventListener("pointermove", follow, { passive: false });
  addEventListener("pointerup", lift);
  addEventListener("pointercancel", cancel);
  addEventListener("keydown", giveUp, true);
}
