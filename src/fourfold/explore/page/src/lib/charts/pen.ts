/** Rectangles, lines and words, drawn on a canvas or written as SVG: one picture for the screen and for the file. */

export interface Pen {
  rect(x: number, y: number, width: number, height: number, paint: Paint): void;
  line(points: readonly (readonly [number, number])[], paint: Paint): void;
  text(
    x: number,
    y: number,
    words: string,
    paint: Paint & { align?: "left" | "center" | "right"; bold?: boolean },
  ): void;
}
export interface Paint {
  fill?: string | undefined;
  stroke?: string | undefined;
  width?: number;
  radius?: number;
  dash?: number;
  alpha?: number;
}

/** Colours of the page: `var(--...)` as it is resolved on an element, anything else as it stands. */
export function colours(element: Element): (colour: string) => string {
  const style = getComputedStyle(element);
  const known = new Map<string, string>();
  return (colour) => {
    const name = /^var\((--[\w-]+)\)$/.exec(colour)?.[1];
    if (!name) return colour;
    let found = known.get(name);
    if (found === undefined) {
      found = style.getPropertyValue(name).trim();
      known.set(name, found);
    }
    return found;
  };
}

/** Black or white, whichever is read better on a colour `#rrggbb`. */
export function inkOn(colour: string): string {
  const parts = [1, 3, 5].map((place) => Number.parseInt(colour.slice(place, place + 2), 16) / 255);
  const [r = 0, g = 0, b = 0] = parts.map((each) =>
    each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b1118" : "#ffffff";
}

export function canvasPen(context: CanvasRenderingContext2D, of: (colour: string) => string): Pen {
  const family = getComputedStyle(context.canvas).fontFamily;
  context.textBaseline = "middle";
  let [filled, alpha] = ["#000000", 1];
  /** Setting a colour costs more than a rectangle: only where it changes. */
  const fillWith = (colour: string, share: number): void => {
    if (colour !== filled) {
      filled = colour;
      context.fillStyle = of(colour);
    }
    if (share !== alpha) {
      alpha = share;
      context.globalAlpha = share;
    }
  };
  const finish = ({ fill, stroke, width = 1, dash = 0, alpha: share = 1 }: Paint): void => {
    fillWith(fill ?? filled, share);
    if (fill) context.fill();
    if (stroke) {
      context.strokeStyle = of(stroke);
      context.lineWidth = width;
      context.setLineDash(dash ? [dash, dash] : []);
      context.stroke();
    }
  };
  return {
    rect(x, y, width, height, paint) {
      if (!paint.stroke && !paint.radius && paint.fill) {
        fillWith(paint.fill, paint.alpha ?? 1);
        context.fillRect(x, y, width, height);
        return;
      }
      context.beginPath();
      context.roundRect(x, y, width, height, paint.radius ?? 0);
      finish(paint);
    },
    line(points, paint) {
      context.beginPath();
      points.forEach(([x, y], index) => {
        if (index === 0) context.moveTo(x, y);
        else context.lineTo(x, y);
      });
      finish(paint);
    },
    text(x, y, words, { fill = "var(--soft)", align = "left", bold = false }) {
      context.font = `${bold ? "600 " : ""}12px ${family}`;
      context.textAlign = align;
      fillWith(fill, 1);
      context.fillText(words, x, y);
    },
  };
}

const escaped = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

/** A pen whose `svg()` is all that was drawn. */
export function svgPen(
  width: number,
  height: number,
  of: (colour: string) => string,
): Pen & { svg: () => string } {
  const parts: string[] = [];
  const style = ({ fill, stroke, width: wide = 1, dash, alpha }: Paint): string =>
    [
      `fill="${fill ? of(fill) : "none"}"`,
      stroke ? `stroke="${of(stroke)}" stroke-width="${wide}"` : "",
      dash ? `stroke-dasharray="${dash}"` : "",
      alpha === undefined ? "" : `opacity="${alpha}"`,
    ].join(" ");
  const short = (value: number): number => Math.round(value * 100) / 100;
  const anchors = { left: "start", center: "middle", right: "end" } as const;
  return {
    rect(x, y, wide, high, paint) {
      const size = `x="${short(x)}" y="${short(y)}" width="${short(wide)}" height="${short(high)}"`;
      parts.push(`<rect ${size} rx="${paint.radius ?? 0}" ${style(paint)}/>`);
    },
    line(points, paint) {
      const places = points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ");
      parts.push(`<polyline points="${places}" ${style({ ...paint, fill: paint.fill })}/>`);
    },
    text(x, y, words, { fill = "var(--soft)", align = "left", bold = false }) {
      const weight = bold ? ' font-weight="600"' : "";
      const place = `x="${short(x)}" y="${short(y + 4)}" text-anchor="${anchors[align]}"`;
      parts.push(
        `<text ${place} font-size="12" font-family="sans-serif"${weight} fill="${of(fill)}">${escaped(words)}</text>`,
      );
    },
    svg: () =>
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><rect width="100%" height="100%" fill="${of("var(--surface)")}"/>${parts.join("")}</svg>`,
  };
}
